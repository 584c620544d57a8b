"""Local differential privacy: every client adds noise to its own change before it sends it.

Duchi, Jordan, Wainwright: Local Privacy and Statistical Minimax Rates. FOCS 2013, section 2;
with Gaussian noise as in Truex, Liu, Chow, Gursoy, Wei: LDP-Fed. EdgeSys 2020, section 2.
https://arxiv.org/abs/2006.03637

    change_k := change_k * min(1, C / |change_k|) + N(0, (z C)^2)

It protects clients against everybody, the server included: whatever the client's data are, its
upload is nearly as likely. Two clipped changes differ by at most 2 C. Nobody else's noise helps,
and sampling does not, because the server sees who sends. A client loses privacy in every round in
which it takes part.

The number of a client's examples is not protected, nor are parts of an upload that are counts.
"""

from dataclasses import dataclass

from flfast.channel.privacy.accountants import composed_gaussian
from flfast.channel.privacy.budget import Budget
from flfast.channel.privacy.participation import Participation
from flfast.channel.privacy.privacy import Privacy, UploadNoise


@dataclass(frozen=True, kw_only=True)
class Local(Budget):
    """Clients clip and noise their own changes; see `Budget`."""

    secure: bool

    def __call__(self, *, participation: Participation, rounds: int) -> UploadNoise:
        """The privacy of a run: epsilon is that of a client which takes part as often as one can.

        Raises:
            ValueError: with key, value and what is allowed.
        """
        spent = self.spending(
            lambda z: composed_gaussian(z / 2, self.delta, participation.most_rounds), rounds
        )
        return Privacy(
            name="local",
            clip_norm=self.clip_norm,
            local_multiplier=spent.multiplier,
            epsilon=spent.epsilon,
            delta=self.delta,
            unit="client",
            adjacency="replace",
            rounds=spent.rounds,
            secure=self.secure,
        )
