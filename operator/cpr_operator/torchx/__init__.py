"""CPRJobs by TorchX: the scheduler `cprjob` and the component `cprjob.dlrm`."""
