"""The report of a job as a page: its model (`job_report`), charts (`charts`) and HTML (`report_page`)."""
