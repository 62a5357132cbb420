"""A certificate authority, a certificate for 127.0.0.1 and localhost, and a certificate for a node.

The certificates are only for tests, and valid for a hundred years. They were created with `openssl req -x509 -newkey ec
-days 36500` and `openssl x509 -req -days 36500`; the authority's key was deleted. The node's certificate is
self-signed.
"""

import ssl
from pathlib import Path

_FILES = Path(__file__).parent / "tls"
AUTHORITY = (_FILES / "authority.pem").read_text()
NODE_CERTIFICATE = (_FILES / "node.pem").read_text()
NODE_KEY = (_FILES / "node-key.pem").read_text()


def server_context(*, mutual: bool = False) -> ssl.SSLContext:
    """Return a TLS context with the certificate for 127.0.0.1 and localhost.

    If `mutual`, clients must present the node's certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if mutual:
        context.load_verify_locations(cadata=NODE_CERTIFICATE)
        context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(_FILES / "server.pem")
    return context
