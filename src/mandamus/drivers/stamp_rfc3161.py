"""RFC 3161 time stamps: `reader(root_pem)` checks replies, `stamp(url, message)` asks an authority for one. Needs the extra [tsa].

    reply = await stamp("http://tsa.example.org/tsr", note)
    seconds = reader(pem)(reply, note)

The rule a newcomer would break: the root certificate is given by whoever checks and never read from the reply. An authority that puts
its whole chain into the reply (`openssl ts -reply -chain`) sends what strict DER readers refuse: the order of the certificates is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from cryptography import x509
from rfc3161_client import HashAlgorithm, TimestampRequestBuilder, VerificationError, VerifierBuilder, decode_timestamp_response

from mandamus.errors import Misuse, ProofError, Unavailable

REPLY_BYTES_MAX = 1 << 16
WAIT_S = 10.0


def reader(root_pem: bytes) -> Callable[[bytes, bytes], int]:
    """`read(reply, message) -> seconds since 1970`. Raises ProofError for a reply that is none, or not over this, or not by this root."""
    try:
        roots = x509.load_pem_x509_certificates(root_pem)
    except ValueError:
        raise Misuse("this is no certificate in PEM", code="MDM-0195", where="--tsa", fix="the authority's root certificate") from None

    def read(reply: bytes, message: bytes) -> int:
        try:
            response = decode_timestamp_response(reply)
            VerifierBuilder(roots=list(roots)).build().verify_message(response, message)
        except (VerificationError, ValueError) as error:
            raise ProofError(f"the stamp does not hold: {str(error)[:160]}", code="MDM-0669") from None
        return int(response.tst_info.gen_time.timestamp())

    return read


async def stamp(url: str, message: bytes) -> bytes:
    """The authority's reply over `message`, its nonce compared. Raises Unavailable, ProofError."""
    import httpx

    asked = TimestampRequestBuilder().data(message).hash_algorithm(HashAlgorithm.SHA256)
    request = asked.nonce(nonce=True).cert_request(cert_request=True).build()
    try:
        async with httpx.AsyncClient(timeout=WAIT_S, follow_redirects=False) as client:
            answer = await client.post(url, content=request.as_bytes(), headers={"content-type": "application/timestamp-query"})
    except httpx.HTTPError as error:
        raise Unavailable(f"the time stamp authority does not answer: {type(error).__name__}", code="MDM-0669", where=url) from None
    if answer.status_code != 200 or len(answer.content) > REPLY_BYTES_MAX:
        raise Unavailable(f"the time stamp authority answers {answer.status_code}", code="MDM-0669", where=url)
    try:
        response = decode_timestamp_response(answer.content)
        nonce = response.tst_info.nonce
    except ValueError as error:
        raise ProofError(f"the authority's reply is no RFC 3161 one: {str(error)[:120]}", code="MDM-0669", where=url) from None
    if nonce != request.nonce:
        raise ProofError("the authority's reply is to another question", code="MDM-0669", where=url)
    return answer.content
