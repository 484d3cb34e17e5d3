"""The fields of a JobSet that ours has, as JobSet v1alpha2 defines them.

Fields that ours does not use are left out, so another name is a misspelling.
The fields of `Job` and `Pod` are those of Kubernetes 1.34.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer", "minimum": 0}
POSITIVE: Schema = {"type": "integer", "minimum": 1}
STATUS: Schema = {"type": "integer", "minimum": 1, "maximum": 255}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}


def one_of(*values: str) -> Schema:
  return {"enum": [*values]}


def many(item: Schema) -> Schema:
  return {"type": "array", "items": item, "minItems": 1}


def fields(**schemas: Schema) -> Schema:
  """An object with exactly these fields."""
  return {
    "type": "object",
    "properties": schemas,
    "required": [*schemas],
    "additionalProperties": False,
  }


CHIPS = fields(**{"google.com/tpu": POSITIVE})
CONTAINER = fields(
  name=TEXT,
  image=TEXT,
  command=many(TEXT),
  ports=many(fields(containerPort=POSITIVE)),
  resources=fields(requests=CHIPS, limits=CHIPS),
)
POD = fields(
  restartPolicy=one_of("Always", "OnFailure", "Never"),
  terminationGracePeriodSeconds=NUMBER,
  nodeSelector=LABELS,
  containers=many(CONTAINER),
)
ACTION = one_of("FailJob", "FailIndex", "Ignore", "Count")
CONDITION = fields(
  type=one_of("DisruptionTarget"), status=one_of("True", "False", "Unknown")
)
EXIT_CODES = fields(
  containerName=TEXT, operator=one_of("In", "NotIn"), values=many(STATUS)
)
POD_FAILURE = {
  "oneOf": [
    fields(action=ACTION, onPodConditions=many(CONDITION)),
    fields(action=ACTION, onExitCodes=EXIT_CODES),
  ]
}
JOB = fields(
  parallelism=POSITIVE,
  completions=POSITIVE,
  backoffLimit=NUMBER,
  podFailurePolicy=fields(rules=many(POD_FAILURE)),
  template=fields(spec=POD),
)
FAILURE = fields(
  name=TEXT,
  action=one_of(
    "FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"
  ),
  onJobFailureReasons=many(
    one_of("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy")
  ),
)
JOB_SET = fields(
  apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
  kind={"const": "JobSet"},
  metadata=fields(name=TEXT, annotations=LABELS),
  spec=fields(
    failurePolicy=fields(maxRestarts=NUMBER, rules=many(FAILURE)),
    replicatedJobs=many(
      fields(name=TEXT, replicas=POSITIVE, template=fields(spec=JOB))
    ),
  ),
)
