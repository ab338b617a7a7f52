"""What the operator and the trainer image agree on: names, exit codes, rosters, reports, manifests.

Standard library only, so that either side can import it. `CONTRACT_VERSION` rises with any change that an older
reader could misread; each side speaks its own version and the one before. Unknown keys are ignored by readers.
"""

CONTRACT_VERSION = 1
