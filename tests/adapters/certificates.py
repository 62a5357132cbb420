"""A certificate authority, a certificate for 127.0.0.1 and localhost, and a certificate for a node.

They are valid for a hundred years, and only for tests. They were created with `openssl req -x509 -newkey ec -days
36500` and `openssl x509 -req -days 36500`; the authority's key was deleted. The node's certificate is its own
authority.
"""

import ssl
from pathlib import Path

_FILES = Path(__file__).parent / "tls"
AUTHORITY = (_FILES / "authority.pem").read_text()
NODE_CERTIFICATE = (_FILES / "node.pem").read_text()
NODE_KEY = (_FILES / "node-key.pem").read_text()


def server_context(*, mutual: bool = False) -> ssl.SSLContext:
    """Return the TLS context of a server with this certificate.

    If `mutual`, clients must show the node's certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if mutual:
        context.load_verify_locations(cadata=NODE_CERTIFICATE)
        context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(_FILES / "server.pem")
    return context
