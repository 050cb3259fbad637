"""The token services of the clouds, as far as obstore and google-auth ask them."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from urllib.parse import parse_qs

from tests.stores.servers import Reply, Request

# So short that obstore and google-auth get a new token for almost each request.
LIFE_S = 5


class Service:
    """A token service. It notes what the callers show it, in order, and answers as its cloud does."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def entra(self, request: Request) -> Reply:
        """Microsoft Entra: an unsigned token that Azurite takes."""
        form = parse_qs(request.body.decode())
        assert form["client_id"] == ["client"]
        self.shown.append(form["client_assertion"][0])
        now = int(time.time())
        claims = {
            "aud": "https://storage.azure.com", "iss": "https://sts.windows.net/tenant/", "iat": now - 60,
            "nbf": now - 60, "exp": now + 3600,
        }  # fmt: skip
        header = {"alg": "RS256", "typ": "JWT"}
        parts = [base64.urlsafe_b64encode(json.dumps(part).encode()) for part in (header, claims)]
        access = ".".join(part.rstrip(b"=").decode() for part in parts) + ".c2ln"
        return self._json({"token_type": "Bearer", "expires_in": LIFE_S, "access_token": access})

    def google(self, request: Request) -> Reply:
        """Google's Security Token Service, and the service that makes tokens of a service account."""
        if request.path.endswith(":generateAccessToken"):
            end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + LIFE_S))
            shown = request.headers["Authorization"].removeprefix("Bearer google-")
            return self._json({"accessToken": f"impersonated-{shown}", "expireTime": end})
        self.shown.append(parse_qs(request.body.decode())["subject_token"][0])
        return self._json({
            "access_token": f"google-{self.shown[-1]}", "token_type": "Bearer", "expires_in": LIFE_S,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        })  # fmt: skip

    def metadata(self, request: Request) -> Reply:
        """The metadata server of GKE: a new token for each request."""
        assert request.headers["Metadata-Flavor"] == "Google"
        self.shown.append(f"metadata-{len(self.shown)}")
        answer = {"access_token": self.shown[-1], "expires_in": LIFE_S, "token_type": "Bearer"}
        status, headers, body = self._json(answer)
        return status, headers | {"Metadata-Flavor": "Google"}, body

    def aws(self, request: Request) -> Reply:
        """AWS's Security Token Service."""
        self.shown.append(parse_qs(request.body.decode() or request.path.partition("?")[2])["WebIdentityToken"][0])
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + LIFE_S))
        found = (
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>a</AccessKeyId>"
            f"<SecretAccessKey>b</SecretAccessKey><SessionToken>c</SessionToken><Expiration>{end}</Expiration>"
            "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )
        return 200, {"Content-Type": "text/xml"}, found.encode()

    def _json(self, answer: dict[str, object]) -> Reply:
        return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()


def federated(url: str, token: Path) -> dict[str, object]:
    """The content of a file of workload identity federation."""
    return {
        "type": "external_account", "token_url": f"{url}/v1/token", "credential_source": {"file": str(token)},
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    }  # fmt: skip
