from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_trainer.exchange.encoding import Encoding
from cpr_trainer.exchange.handshake import HandshakeError, Hello, Identity, Initiator, Responder

KEY = b"the key"
TRAINER = Identity("job", "trainer", 1, 3, 1)
SHARD = Identity("job", "shard", 2, 5, 4)


def initiator(key: bytes = KEY, expected: Identity = SHARD) -> Initiator:
    return Initiator(key, TRAINER, expected, b"a" * 16)


def responder(key: bytes = KEY, me: Identity = SHARD, nonce: bytes = b"b" * 16) -> Responder:
    return Responder(key, me, nonce)


def test_handshake_identifies_both_sides() -> None:
    trainer, shard = initiator(), responder()
    proof, peer = trainer.prove(shard.challenge(trainer.hello))
    assert peer == SHARD
    hello = shard.accept(proof)
    assert hello == Hello(TRAINER, SHARD, (b"a" * 16).hex())


def test_the_generation_may_differ() -> None:
    trainer, shard = initiator(expected=replace(SHARD, generation=9)), responder()
    assert trainer.prove(shard.challenge(trainer.hello))[1].generation == 4


def test_a_trainer_refuses_a_shard_without_the_key() -> None:
    trainer, shard = initiator(), responder(b"another key")
    with pytest.raises(HandshakeError, match=r"shard/2 incarnation 5 does not hold this job's key"):
        trainer.prove(shard.challenge(trainer.hello))


def test_a_shard_refuses_a_trainer_without_the_key() -> None:
    shard, honest, thief = responder(), initiator(), initiator(b"another key")
    challenge = shard.challenge(honest.hello)
    with pytest.raises(HandshakeError):
        thief.prove(challenge)
    with pytest.raises(HandshakeError, match=r"trainer/1 incarnation 3 does not hold this job's key"):
        shard.accept(b'{"proof": "00"}')
    with pytest.raises(HandshakeError):
        shard.accept(b'{"proof": "\\u00e9\\ud800"}')


def test_a_shard_refuses_another_job() -> None:
    with pytest.raises(HandshakeError, match="another job"):
        responder(me=replace(SHARD, job_uid="other")).challenge(initiator().hello)


@pytest.mark.parametrize("other", [{"index": 1}, {"incarnation": 4}, {"role": "trainer"}])
def test_trainer_refuses_a_shard_that_its_roster_does_not_name(other: dict[str, Any]) -> None:
    trainer, shard = initiator(), responder(me=replace(SHARD, **other))
    with pytest.raises(HandshakeError, match=r"expected shard/2 incarnation 5"):
        trainer.prove(shard.challenge(trainer.hello))


def test_proofs_cannot_be_replayed_or_mirrored() -> None:
    trainer, shard = initiator(), responder()
    challenge = shard.challenge(trainer.hello)
    proof, _ = trainer.prove(challenge)
    later = responder(nonce=b"c" * 16)
    later.challenge(trainer.hello)
    with pytest.raises(HandshakeError):
        later.accept(proof)
    with pytest.raises(HandshakeError):
        shard.accept(challenge)  # the shard's own proof, sent back


def test_a_changed_hello_is_noticed() -> None:
    trainer, shard = initiator(), responder()
    forged = trainer.hello.replace(b'"index":1', b'"index":0')
    assert forged != trainer.hello
    with pytest.raises(HandshakeError, match="does not hold this job's key"):
        trainer.prove(shard.challenge(forged))


@pytest.mark.parametrize("noise", [b"", b"\x80", b"[]", b"{}", b'{"caller": 1}', b"[" * 4000])
def test_noise_is_no_handshake(noise: bytes) -> None:
    with pytest.raises(HandshakeError, match="not a handshake"):
        responder().challenge(noise)
    with pytest.raises(HandshakeError, match="not a handshake"):
        initiator().prove(noise)


def test_other_packing_of_rows_is_refused_by_either_side() -> None:
    wide, narrow = Encoding(8, "fp32", "fp32"), Encoding(4, "bf16", "bf16")
    shard = Responder(KEY, SHARD, b"b" * 16, wide)
    with pytest.raises(HandshakeError, match=r"rows are packed as .*bf16.* there, and as .*fp32.* here"):
        shard.challenge(Initiator(KEY, TRAINER, SHARD, b"a" * 16, narrow).hello)
    trainer = Initiator(KEY, TRAINER, SHARD, b"a" * 16, wide)
    trainer.prove(shard.challenge(trainer.hello))
