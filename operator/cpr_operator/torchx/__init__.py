"""CPRJobs by TorchX: the scheduler `cprjob` and the component `cprjob.dlrm`.

`components` and `manifest` turn a file into an application and that into the manifest, `status` says in TorchX's words
how a job stands, and `scheduler` is what TorchX calls. `cpr_operator.client` asks the API server.
"""
