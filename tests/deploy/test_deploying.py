"""Around a run across sites: certificates, what Flower says, and how a run ends for a site that missed its end."""

import ipaddress
import socket
import ssl
import threading
from contextlib import suppress

import pytest

pytest.importorskip("flwr", reason="pip install 'fedspm[flower]'")

import torch
from cryptography import x509

from fedspm.algorithms.fedspm import FedSPM
from fedspm.base.errors import FedSPMError
from fedspm.base.files import write_atomically
from fedspm.deploy.demo import across_sites
from fedspm.deploy.keys import make_certificates
from fedspm.deploy.processes import Processes, one_line
from fedspm.engines.flower.server import FlowerEngine
from fedspm.engines.flower.site_store import Store, noise_secret
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.runs.manifest import site_manifest
from fedspm.training.loop import begin, one_round, train
from postbox import algorithm_of, loop_engine
from small import small_settings


def test_a_certificate_is_good_for_the_servers_own_processes_too(tmp_path):
    make_certificates(tmp_path, ["fl.example.org", "münchen.example", "10.0.0.7"])
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "xn--mnchen-3ya.example", "localhost"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(a) for a in ("10.0.0.7", "127.0.0.1")]


def test_certificates_pass_strict_checks(tmp_path):
    """Python 3.13 makes these checks by default, and refuses an authority without keyUsage."""
    make_certificates(tmp_path, ["fl.example.org"])
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    strict = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    strict.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with suppress(OSError):
                served.wrap_socket(listening.accept()[0], server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname()) as plain,
                strict.wrap_socket(plain, server_hostname="fl.example.org") as secure,
            ):
                assert secure.version()
        finally:
            thread.join()


def test_keys_may_be_used_for_nothing_else(tmp_path):
    make_certificates(tmp_path, ["fl.example.org"])
    usages = []
    for file in ("ca.crt", "server.pem"):
        certificate = x509.load_pem_x509_certificate((tmp_path / file).read_bytes())
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
        assert usage.critical
        assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).critical
        allowed = ("digital_signature", "key_encipherment", "key_agreement", "key_cert_sign", "crl_sign")
        usages.append({name for name in allowed if getattr(usage.value, name)})
    assert usages == [{"key_cert_sign", "crl_sign"}, {"digital_signature"}]


def modes(folder):
    """Whatever others may do with what lies in a folder, by its path."""
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o077 for path in folder.rglob("*")}


def test_what_a_site_writes_only_its_owner_may_read(vectors, tmp_path):
    torch.set_num_threads(1)
    algorithm = algorithm_of(FedSPM, small_settings(privacy={"clip": 1.0, "noise": 0.1}), vectors)
    engine = loop_engine(vectors, algorithm, tmp_path / "sites")
    assert noise_secret(engine.grid.sites[10].config.state)
    one_round(algorithm, engine, begin(algorithm, engine), 0)
    found = modes(tmp_path / "sites")
    written = {path.rsplit("/", 1)[-1].split("-")[0] for path in found}
    assert written >= {
        "rows.safetensors",
        "run.json",
        "ledger.jsonl",
        "ledger.head",
        "shared.safetensors",
        "private",
        "noise.key",
    }
    assert {path: mode for path, mode in found.items() if mode} == {}


def test_what_a_started_process_writes_only_its_owner_may_read(tmp_path):
    with Processes(tmp_path) as processes:
        processes.start(
            "one", ["sh", "-c", f"echo said; mkdir {tmp_path}/d; echo kept > {tmp_path}/d/state.db"], tmp_path
        )
        processes.running["one"].wait()
    assert (tmp_path / "one.log").read_text() == "said\n"
    assert modes(tmp_path) == {"one.log": 0, "d": 0, "d/state.db": 0}


@pytest.mark.parametrize("host", ["", "https://fl.example.org", "fl.example.org:9443", "two words", "a..b"])
def test_what_is_no_host_is_refused_before_anything_is_written(tmp_path, host):
    with pytest.raises(FedSPMError, match="neither a host's name nor an address"):
        make_certificates(tmp_path / "server", [host])
    assert not (tmp_path / "server").exists()


def test_what_flower_says_is_passed_on_without_its_boxes():
    boxed = "Using SuperLink: x\nUsage: flwr …\n╭─ Error ─────╮\n│ Public key   │\n│ is missing.  │\n╰──────────────╯\n"
    assert one_line(boxed) == "Public key is missing."


def test_a_site_that_missed_the_end_gets_the_last_state_when_the_run_is_resumed(vectors, tmp_path):
    torch.set_num_threads(1)
    config = across_sites(resolve(small_settings(rounds=2).model_dump(exclude_none=True) | {"eval_every": 1}), vectors)
    algorithm = algorithm_of(FedSPM, config, vectors)
    lost = {("south", "evaluate"), ("south", "summarise")}

    def between(step, site, content):
        return None if (site, step) in lost else content

    grid = loop_engine(vectors, algorithm, tmp_path / "sites", between)
    run = Run(tmp_path / "run")
    run.path.mkdir()
    write_atomically(run.path / "config.toml", config.to_toml())
    run.describe(site_manifest(algorithm, vectors.classes, pixels=False))

    def engine():
        return FlowerEngine(grid.post, algorithm, vectors.classes, "run1", grid.nodes, print)

    south = Store.of(grid.grid.sites[grid.nodes["south"]].config.state, "run1")
    train(config, algorithm, None, engine=engine(), run=run)
    assert set(run.last_metrics()["clients"]) == {"north", "west"}
    before = run.last_metrics()
    (south.folder / "shared.safetensors").unlink()  # as if it had never come

    train(config, algorithm, None, engine=engine(), run=run, checkpoint=run.latest())  # it is still not heard
    assert run.last_metrics() == before
    lost.clear()
    train(config, algorithm, None, engine=engine(), run=run, checkpoint=run.latest())
    assert set(run.last_metrics()["clients"]) == {"north", "south", "west"}
    assert run.last_metrics()["seconds"] == before["seconds"]
    assert torch.equal(south.last_shared()[0]["tilt.xi"], run.latest().shared["tilt.xi"])
