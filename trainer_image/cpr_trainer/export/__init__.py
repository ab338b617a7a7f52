"""Models as files: what `cprjob export` writes out of an anchor. docs/serving.md describes the files."""
