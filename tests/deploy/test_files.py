"""What engines are given: the commands start, and the fields exist."""

import json
import pathlib
import re
import shlex
import subprocess
import tomllib

import jsonschema
import pytest
import yaml

from tests.deploy.jobset_schema import JOB_SET as SCHEMA
from transformer_xl import signals

ROOT = pathlib.Path(__file__).parents[2]
TASK = yaml.safe_load((ROOT / "deploy/sky.yaml").read_text())
STUDY = yaml.safe_load((ROOT / "deploy/study.yaml").read_text())
ARRAY = ROOT / "deploy/study.slurm"
JOB_SET = yaml.safe_load((ROOT / "deploy/jobset.yaml").read_text())


def job():
  (replicated,) = JOB_SET["spec"]["replicatedJobs"]
  return replicated["template"]["spec"]


def container():
  (only,) = job()["template"]["spec"]["containers"]
  return only


# Flags with what a shell takes apart, and the words that they are.
ARGUMENTS = """--config.analysis.seeds='(0,1)' \
--config.analysis.variants="('a: ','b: train.mem_len=0')"
"""
WORDS = [
  "--config.analysis.seeds=(0,1)",
  "--config.analysis.variants=('a: ','b: train.mem_len=0')",
]


def task_command(task, folder, **variables):
  """The words that a task's commands run, with the values of `envs`."""
  program = folder / ".venv/bin/transformer-xl"
  program.parent.mkdir(parents=True, exist_ok=True)
  program.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
  program.chmod(0o755)
  finished = subprocess.run(
    ["bash", "-c", task["run"]],
    env=task["envs"] | {"BUCKET": "bucket"} | variables,
    cwd=folder,
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  return ["transformer_xl.main", *finished.stdout.splitlines()]


def array_calls(folder, *, status, **variables):
  """What the script of the array calls, where the study ends with a status."""
  for name, end in (("srun", status), ("scontrol", 0)):
    program = folder / name
    program.write_text(
      "#!/bin/bash\n"
      f"printf '%q ' {name} \"$@\" >> {folder}/calls\n"
      f"echo >> {folder}/calls\n"
      f"exit {end}\n"
    )
    program.chmod(0o755)
  (folder / "calls").unlink(missing_ok=True)
  finished = subprocess.run(
    ["bash", str(ARRAY)],
    env={
      "PATH": f"{folder}:/usr/bin:/bin",
      "SLURM_ARRAY_JOB_ID": "12",
      "SLURM_ARRAY_TASK_ID": "3",
      "SLURM_CPUS_PER_TASK": "2",
      **variables,
    },
    cwd=folder,
    check=False,
  )
  assert finished.returncode == status
  return [shlex.split(line) for line in (folder / "calls").open()]


def test_arguments_that_a_shell_cannot_read_start_nothing(tmp_path):
  unquoted = "--config.analysis.seeds=(0,1)"
  finished = subprocess.run(
    ["bash", str(ARRAY)],
    env={"PATH": f"{tmp_path}:/usr/bin:/bin", "ARGUMENTS": unquoted},
    cwd=tmp_path,
    check=False,
    capture_output=True,
    text=True,
  )
  assert finished.returncode == 2
  assert "syntax error" in finished.stderr


def job_command():
  program, *flags = container()["command"]
  assert program == "transformer-xl"
  return ["transformer_xl.main", *flags]


def commands(folder):
  """What engines run; tests/docs/test_documented_commands.py starts it."""
  more = {"ARGUMENTS": ARGUMENTS}
  ((_, _, program, *flags),) = array_calls(folder, status=0, **more)
  assert program == ".venv/bin/transformer-xl"
  return [
    task_command(TASK, folder, **more),
    task_command(STUDY, folder, **more),
    ["transformer_xl.main", *flags],
    job_command(),
  ]


def test_commands_have_the_arguments_that_a_shell_takes_apart(tmp_path):
  *flexible, _ = commands(tmp_path)
  assert all(words[-2:] == WORDS for words in flexible)
  ((_, cores, *_),) = array_calls(tmp_path, status=0)
  assert cores == "--cpus-per-task=2"


def test_both_run_the_same_command(tmp_path):
  """With the same bucket a run may move from one engine to the other."""
  job_flags = " ".join(job_command()).replace("BUCKET", "bucket")
  assert job_flags == " ".join(task_command(TASK, tmp_path))


def test_both_restart_what_stopped_on_a_checkpoint():
  stopped = [signals.TERMINATED]
  recovery = TASK["resources"]["job_recovery"]
  assert recovery["recover_on_exit_codes"] == stopped
  assert STUDY["resources"]["job_recovery"] == recovery
  rules = job()["podFailurePolicy"]["rules"]
  codes = [r["onExitCodes"]["values"] for r in rules if "onExitCodes" in r]
  assert codes == [stopped]


def test_workers_of_an_array_share_a_folder_and_return_to_the_queue(tmp_path):
  """Also what is run is that of the SkyPilot study, but for the folder."""
  (run,) = array_calls(tmp_path, status=0)
  on_sky = [
    word.replace("gs://bucket/mqar", f"{tmp_path}/runs/study").replace(
      "gs://bucket/data", f"{tmp_path}/runs/study/data"
    )
    for word in task_command(STUDY, tmp_path)
  ]
  assert run[3:] == on_sky[1:]
  _, requeue = array_calls(tmp_path, status=signals.TERMINATED)
  assert requeue == ["scontrol", "requeue", "12_3"]
  (failed,) = array_calls(
    tmp_path, status=2, CONFIG="memory_text:wikitext2", FOLDER="/shared/text"
  )
  assert "--config=memory_text:wikitext2" in failed
  assert "--workdir=/shared/text" in failed
  directives = [
    line.split()[1]
    for line in ARRAY.read_text().splitlines()
    if line.startswith("#SBATCH ")
  ]
  # To the command and not to the script, which asks for its status.
  assert "--signal=TERM@120" in directives
  assert "--requeue" in directives


def test_the_job_set_has_the_fields_of_its_definition():
  jsonschema.Draft202012Validator.check_schema(SCHEMA)
  jsonschema.validate(JOB_SET, SCHEMA)


def paths(value, path=()):
  """The path of every field of a manifest, but labels and resources' names."""
  items = value.items() if isinstance(value, dict) else enumerate(value)
  for name, item in items:
    if path[-1:] in (("nodeSelector",), ("annotations",)):
      continue
    if isinstance(name, str):
      yield (*path, name)
    if isinstance(item, dict | list):
      yield from paths(item, (*path, name))


@pytest.mark.parametrize("path", paths(JOB_SET), ids=lambda p: str(p[-1]))
def test_a_misspelled_field_of_the_job_set_is_found(path):
  manifest = json.loads(json.dumps(JOB_SET))
  *parents, name = path
  inner = manifest
  for parent in parents:
    inner = inner[parent]
  inner[f"{name}s"] = inner.pop(name)
  with pytest.raises(jsonschema.ValidationError):
    jsonschema.validate(manifest, SCHEMA)


def test_hosts_and_chips_are_those_of_the_slice():
  pod = job()["template"]["spec"]
  selector = pod["nodeSelector"]
  rows, columns = selector["cloud.google.com/gke-tpu-topology"].split("x")
  chips = int(rows) * int(columns)
  limits = container()["resources"]["limits"]
  assert job()["parallelism"] * limits["google.com/tpu"] == chips
  assert job()["completions"] == job()["parallelism"]
  assert TASK["resources"]["accelerators"] == f"tpu-v5litepod-{chips}"
  assert limits == container()["resources"]["requests"]
  # Kubernetes wants `Never` wherever there is a podFailurePolicy.
  assert pod["restartPolicy"] == "Never"
  names = [
    rule["onExitCodes"]["containerName"]
    for rule in job()["podFailurePolicy"]["rules"]
    if "onExitCodes" in rule
  ]
  assert names == [container()["name"]]


def test_the_image_is_built_of_files_and_extras_that_exist():
  lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
  copied = [line.split()[1:-1] for line in lines if line.startswith("COPY")]
  for names in copied:
    assert all((ROOT / name).exists() for name in names), names
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  extras = {*project["optional-dependencies"]}
  named = re.findall(r"`([a-z,]+)` for", "\n".join(lines))
  assert len(named) == 3
  for names in named:
    assert {*names.split(",")} <= extras
