"""Only those who may ask are answered: tokens of callers, the secret of router and nodes."""

import pytest

from fedspm.base.errors import FedSPMError
from fedspm.serve.http.auth import read_secret, read_table
from serving import ask

TOKEN = "0123456789abcdef0123456789abcdef"
ROW = [0.0] * 6


def test_without_a_valid_token_nothing_is_answered(served):
    bundle = served[2]
    wrong = [{}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}, {"authorization": f"Basic {TOKEN}"}]

    async def act(http, router, board):
        refused = [await http.post("/v1/predict", json={"x": ROW}, headers=headers) for headers in wrong]
        refused += [await http.get(path) for path in ("/v1/clients", "/v1/model", "/metrics", "/v1/samples")]
        right = await http.post("/v1/predict", json={"x": ROW}, headers={"authorization": f"Bearer {TOKEN}"})
        return refused, right, board.asked, await http.get("/healthz")

    refused, right, asked, health = ask(bundle, act, tokens={"alice": TOKEN})
    assert {reply.status_code for reply in refused} == {401}
    assert all("token" in reply.json()["error"] for reply in refused)
    assert (right.status_code, health.status_code) == (200, 200)
    assert len(asked) == 1


def test_tokens_are_compared_in_constant_time(served, monkeypatch):
    compared = []
    real = __import__("hmac").compare_digest

    def watched(one, other):
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr("fedspm.serve.http.auth.hmac.compare_digest", watched)

    async def act(http, router, board):
        compared.clear()
        return await http.get("/v1/model", headers={"authorization": "Bearer x"})

    assert ask(served[2], act, tokens={"alice": TOKEN, "bob": TOKEN[::-1]}).status_code == 401
    assert compared == [(32, 32), (32, 32)]  # all of them, as digests of one length


def test_a_node_answers_only_who_knows_the_secret(served):
    async def act(http, router, board):
        board.secret = "another secret"
        return await http.post("/v1/predict", json={"x": ROW})

    assert ask(served[2], act).status_code == 503


def test_secrets_that_are_short_or_do_not_fit_a_header_are_refused(tmp_path):
    (tmp_path / "secret").write_text("ein Schlüssel, lang genug", "utf-8")
    with pytest.raises(FedSPMError, match="beyond printable ASCII"):
        read_secret(tmp_path / "secret")
    (tmp_path / "secret").write_text("short")
    (tmp_path / "tokens.toml").write_text("alice = 3")
    with pytest.raises(FedSPMError, match="shorter than 16"):
        read_secret(tmp_path / "secret")
    with pytest.raises(FedSPMError, match="must have lines such as"):
        read_table(tmp_path / "tokens.toml", "alice = …")
