"""Names that a pod and the operator share: environment, mounted files, ports, labels, annotations."""

from typing import Final

# Environment of a trainer or shard process.
SPEC = "CPR_SPEC"  # the `JobSpec` as JSON, if it is short
SPEC_FILE = "CPR_SPEC_FILE"  # instead of SPEC, if it is long: a file with the packed `JobSpec` (`codec.pack`)
ROSTER_FILE = "CPR_ROSTER_FILE"  # the pod's roster, kept up to date by the kubelet (or by local mode)
KEY_FILE = "CPR_KEY_FILE"  # the job's key for the handshake
KEY_DIGEST = "CPR_KEY_DIGEST"  # the key's digest (`roster.key_digest`), optional: a key with another one is not used
ENCRYPTION = "CPR_ENCRYPTION"  # `choices.Encryption`; TLS: the key's folder has the job's CA. Absent: None
ISSUED_CA_FILE = "CPR_ISSUED_CA_FILE"  # optional: the job's CA and its chain as issued last; empty: as in the folder
POD = "CPR_POD"  # the pod's name, optional: without it rosters are read from the file alone
ADDRESS = "CPR_ADDRESS"  # the address on which this pod listens and is reached
PORT_BASE = "CPR_PORT_BASE"  # the first of the pod's consecutive ports
CREDENTIALS_DIR = (
    "CPR_CREDENTIALS_DIR"  # files accessKey, secretKey, sessionToken (optional); absent = workload identity
)
CA_FILE = "CPR_CA_FILE"  # a CA bundle for the store, optional
DATA_CREDENTIALS_DIR = "CPR_DATA_CREDENTIALS_DIR"  # the same for the data, if it has a store of its own
DATA_CA_FILE = "CPR_DATA_CA_FILE"
TRACKERS = "CPR_TRACKERS"  # trackers for the leader's metrics; set by pod templates, never by the operator
SCRATCH_DIR = "CPR_SCRATCH_DIR"  # an empty folder for temporary files
KEEPER = "CPR_KEEPER"  # not empty: a supervisor restarts a process that died in the pod, with its memory
HISTORY_FILE = "CPR_HISTORY_FILE"  # the job's record (`history.JobRecord`, packed), which this pod stores; empty: none
MEMORY_DIR = "CPR_MEMORY_DIR"  # a folder in memory that outlives the container, if the cluster restarts containers
KEPT_FILE = "CPR_KEPT_FILE"  # set by a trainer's supervisor that cannot fork: the descriptor of the resume file
TERMINATION_FILE = "CPR_TERMINATION_FILE"  # the file for the `Problem` that ends the process

# Mounts in a pod.
ROSTER_DIR = "/etc/cprjob/roster"
ROSTER_NAME = "roster.json"
ISSUED_CA_DIR = "/etc/cprjob/issued-ca"
ISSUED_CA_NAME = "ca.crt"
SPEC_DIR = "/etc/cprjob/spec"
SPEC_NAME = "job"
HISTORY_DIR = "/etc/cprjob/history"
HISTORY_NAME = "record"
KEY_DIR = "/etc/cprjob/key"
KEY_NAME = "key"
CA_NAME = "ca.crt"  # next to the key if the job's traffic is encrypted: the certificate of the job's CA,
CA_KEY_NAME = "ca.key"  # its private key, with which each process signs a certificate of its own,
CA_CHAIN_NAME = "ca-chain.crt"  # the certificates above that of the CA, if an issuer has signed it,
OPERATOR_NAME = "operator.crt"  # and the certificate of the operator, which no CA of a job signs
CREDENTIALS_MOUNT = "/etc/cprjob/credentials"
CA_MOUNT = "/etc/cprjob/ca"
DATA_CREDENTIALS_MOUNT = "/etc/cprjob/data-credentials"
DATA_CA_MOUNT = "/etc/cprjob/data-ca"
MEMORY_MOUNT = "/run/cprjob"
SCRATCH_MOUNT = "/tmp"  # noqa: S108 -- the mount point of the pod's own emptyDir
TERMINATION_MOUNT = "/dev/termination-log"

# Ports, counted from PORT_BASE.
DEFAULT_PORT_BASE = 7070
DATA_PORT = 0  # shards: lookups and pushes
HTTP_PORT = 1  # /healthz /readyz /metrics /status
CONTROL_PORT = 2  # leader: dense group, steps, state copies

# Labels and annotations of a job's pods.
GROUP = "cprjob.io"
LABEL_JOB = "cprjob.io/job"
LABEL_JOB_UID = "cprjob.io/job-uid"
LABEL_ROLE = "cprjob.io/role"
LABEL_INDEX = "cprjob.io/index"
LABEL_INCARNATION = "cprjob.io/incarnation"
LABEL_ENCRYPTION = "cprjob.io/encryption"  # `choices.Encryption` of a pod's ports; absent: None
ANNOTATION_ROSTER = "cprjob.io/roster"
ANNOTATION_SPEC = "cprjob.io/job-spec"
ANNOTATION_HISTORY = "cprjob.io/history"
ANNOTATION_ISSUED_CA = "cprjob.io/issued-ca"
ANNOTATION_ROSTER_VERSION = "cprjob.io/roster-version"

ROLE_SHARD: Final = "shard"
ROLE_TRAINER: Final = "trainer"
ROLE_SPARE = "spare"  # a standby pod: it has neither index nor incarnation
ROLE_CLEANUP = "cleanup"  # deletes the saves of a job that is being deleted
ROLE_PUBLISHER = "publisher"  # publishes models while the job trains; no member
ROLE_RECORDER = "recorder"  # stores the record of a job that has ended
MAIN_CONTAINER = "main"
