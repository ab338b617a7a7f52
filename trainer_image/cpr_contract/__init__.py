"""The contract between operator and trainer image: names, exit codes, rosters, reports, manifests.

It imports the standard library only, because both sides import it. `CONTRACT_VERSION` rises with any change that an
older reader could misread. Each side supports its own version and the one before. Readers ignore unknown keys.
"""

CONTRACT_VERSION = 1
