"""`cprjob ui`: jobs in a browser, as they go on. `source` finds them, `server` shows them. It changes nothing."""
