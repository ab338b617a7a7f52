"""Pictures of a job: what is known of it (`story`), as charts (`charts`), tables (`tables`) and a page (`page`)."""
