# SPDX-License-Identifier: BSD-3-Clause
"""What packet filters print. nft's JSON, in ``rulesets``, and iptables-save's text were recorded from nftables 1.0.6
and iptables 1.8.9 in a network namespace, and connections tried: each lets port 8786 in, and 9000 only where it says
so; ``maps`` lets only 9001 in."""

from pathlib import Path


def nft(name):
    """Return what ``nft -j list ruleset`` printed."""
    return (Path(__file__).parent / "rulesets" / f"{name}.json").read_text()


IPTABLES_RHEL = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p icmp -j ACCEPT
-A INPUT -i lo -j ACCEPT
-A INPUT -p tcp -m state --state NEW -m tcp --dport 22 -j ACCEPT
-A INPUT -p tcp -m multiport --dports 8786,13337:13338 -j ACCEPT
-A INPUT -j REJECT --reject-with icmp-host-prohibited
-A FORWARD -j REJECT --reject-with icmp-host-prohibited
COMMIT
*nat
:PREROUTING ACCEPT [2:120]
:INPUT ACCEPT [1:60]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
COMMIT
"""
IPTABLES_CHAINS = """\
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:OPEN - [0:0]
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -m conntrack --ctstate INVALID -j DROP
-A INPUT -j OPEN
-A OPEN -p udp -m udp --dport 9000 -j ACCEPT
-A OPEN -p tcp -m tcp --dport 8786 -m conntrack --ctstate NEW -j ACCEPT
-A OPEN -j RETURN
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
COMMIT
"""
#: firewalld 1.3: a zone with an interface, one by source, and one that is not in use.
FIREWALLD = """\
block
  target: %%REJECT%%
  icmp-block-inversion: no
  interfaces:
  services:
  ports:

internal (active)
  target: default
  interfaces:
  sources: 10.0.0.0/8
  services: ssh
  ports: 8786/tcp 13337-13338/tcp
  protocols:

public (default, active)
  target: default
  icmp-block-inversion: no
  interfaces: eth0
  sources:
  services: dhcpv6-client ssh
  ports: {ports}
  protocols:
  forward: yes
"""
