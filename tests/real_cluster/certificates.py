"""A certificate authority for one run of a cluster."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = timedelta(days=1)


@frozen
class Pair:
    """The PEM files that contain a certificate and its key."""

    certificate: Path
    key: Path


@frozen
class Authority:
    """Issues certificates into a directory. `certificate` is the file with the authority's own certificate."""

    directory: Path
    certificate: Path
    key: Path
    _signer: RSAPrivateKey
    _name: x509.Name

    @classmethod
    def new(cls, directory: Path) -> Self:
        """Create an authority and its files in `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        key, name = _key(), _name("devicecore test authority", ())
        basic = x509.BasicConstraints(ca=True, path_length=None)
        certificate = _builder(name, key).issuer_name(name).add_extension(basic, critical=True)
        pair = _written(directory, "ca", certificate.sign(key, hashes.SHA256()), key)
        return cls(directory, pair.certificate, pair.key, key, name)

    def issue(self, file: str, user: str, groups: tuple[str, ...] = (), hosts: tuple[str, ...] = ()) -> Pair:
        """Issue a certificate for a user in groups, valid for servers at `hosts`. File names start with `file`."""
        key = _key()
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = _builder(_name(user, groups), key).issuer_name(self._name)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            alternatives = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(alternatives, critical=False)
        return _written(self.directory, file, builder.sign(self._signer, hashes.SHA256()), key)

    def key_pair(self, file: str) -> Pair:
        """Create a key pair without a certificate: the public key is stored in the file for the certificate."""
        key = _key()
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return _files(self.directory, file, public, key)


def _key() -> RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _name(user: str, groups: tuple[str, ...]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(name: x509.Name, key: RSAPrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _DAY).not_valid_after(now + 30 * _DAY)


def _written(directory: Path, file: str, certificate: x509.Certificate, key: RSAPrivateKey) -> Pair:
    return _files(directory, file, certificate.public_bytes(Encoding.PEM), key)


def _files(directory: Path, file: str, public: bytes, key: RSAPrivateKey) -> Pair:
    pair = Pair(directory / f"{file}.crt", directory / f"{file}.key")
    pair.certificate.write_bytes(public)
    pair.key.touch(mode=0o600)
    pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return pair
