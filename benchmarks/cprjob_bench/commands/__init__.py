"""The work of each command: `cprjob bench snapshot`, `train`, `recovery` and `priority`, and `cprjob simulate`."""
