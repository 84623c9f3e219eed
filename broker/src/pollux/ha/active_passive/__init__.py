"""Active-passive clusters: a resource manager decides who serves (Qpid's mode). See docs/active-passive.md.

* :mod:`pollux.ha.active_passive.statuses`: what a broker of such a cluster says of itself, and what may follow what
* :mod:`pollux.ha.active_passive.promotion`: may this member be promoted, or demoted
* :mod:`pollux.ha.active_passive.ready`: how long a backup may take itself for ready
* :mod:`pollux.ha.active_passive.policy`: what a member does next

All of it is pure: times are seconds of a clock that never goes back, and passed in.
"""
