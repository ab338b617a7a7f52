"""`cprjob`: jobs on this machine, and checks of manifests."""


def main() -> None:
    """The console entry."""
    # Others read manifests by what lies here, and need none of the commands' libraries.
    from cpr_operator.cli.app import main as run  # noqa: PLC0415

    run()
