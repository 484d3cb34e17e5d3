"""Parses the task files of deploy/ with SkyPilot itself; `make deploy-check`.

Runs in an environment of its own, since SkyPilot wants older packages. No cloud
is asked, so whether a zone has the accelerator is not checked.
"""

import pathlib

import sky
import yaml

FOLDER = pathlib.Path(__file__).parents[2] / "deploy"
FILE = FOLDER / "sky.yaml"


def is_refused(settings: dict) -> bool:
  """Whether SkyPilot refuses a task."""
  try:
    sky.Task.from_yaml_config(settings, env_overrides=[("BUCKET", "bucket")])
  except ValueError:
    return True
  return False


def main() -> None:
  task = sky.Task.from_yaml_config(
    yaml.safe_load(FILE.read_text()), env_overrides=[("BUCKET", "bucket")]
  )
  (resources,) = task.resources
  print(f"SkyPilot {sky.__version__} read {FILE.name}: {task}, {resources}.")
  assert resources.use_spot
  assert resources.accelerators == {"tpu-v5litepod-16": 1}
  recovery = resources.job_recovery
  assert recovery["recover_on_exit_codes"] == [143], recovery
  assert recovery["max_restarts_on_errors"] == 3, recovery
  assert task.envs["BUCKET"] == "bucket"

  study = sky.Task.from_yaml_config(
    yaml.safe_load((FOLDER / "study.yaml").read_text()),
    env_overrides=[("BUCKET", "bucket")],
  )
  (resources,) = study.resources
  assert resources.use_spot
  assert resources.cpus == "4+"
  assert resources.job_recovery["recover_on_exit_codes"] == [143]

  for names in (("setups",), ("resources", "use_spots")):
    wrong = yaml.safe_load(FILE.read_text())
    inner = wrong
    for name in names[:-1]:
      inner = inner[name]
    inner[names[-1]] = inner.pop(names[-1][:-1])
    assert is_refused(wrong), f"SkyPilot read {names}."


if __name__ == "__main__":
  main()
