"""Addresses of pods, IPv4 or IPv6, as `status.podIP` has them: without brackets."""


def page_url(host: str, port: int, page: str) -> str:
    """Return the URL of a page, which begins with a slash, on a process's HTTP port."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{page}"
