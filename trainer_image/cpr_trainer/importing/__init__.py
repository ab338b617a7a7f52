"""Models that were trained elsewhere, as anchors: what `cprjob import` reads, matches by name, and writes."""
