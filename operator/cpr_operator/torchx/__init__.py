"""CPRJobs by TorchX: the scheduler `cprjob` and the component `cprjob.dlrm`.

`components` and `application` convert a manifest to an application of TorchX and back, `app_state` converts the status
of a job, and `scheduler` implements TorchX's interface over `cpr_operator.client`.
"""
