# SPDX-License-Identifier: BSD-3-Clause
"""What packet filters print. Those of nft and iptables-save were recorded from nftables 1.0.6 and iptables 1.8.9 in a
network namespace, and connections tried: each lets port 8786 in, and 9000 only where it says so."""

NFT_WORKSTATION = """\
table inet filter {
    chain input {
        type filter hook input priority filter; policy drop;
        ct state vmap { invalid : drop, established : accept, related : accept }
        iifname "lo" accept
        meta l4proto { icmp, ipv6-icmp } accept
        tcp dport { 22, 8780-8790 } ct state new accept
        udp dport 9000 accept
    }

    chain forward {
        type filter hook forward priority filter; policy drop;
    }

    chain output {
        type filter hook output priority filter; policy accept;
    }
}
"""
NFT_JUMPS = """\
table inet firewall {
    chain opened {
        tcp dport 8786 counter packets 0 bytes 0 accept
        ip saddr 10.0.0.0/8 tcp dport 9001 accept
    }

    chain inbound {
        type filter hook input priority filter; policy accept;
        ct state established,related accept
        iifname "lo" accept
        ip protocol icmp accept
        jump opened
        counter packets 0 bytes 0 reject with icmpx admin-prohibited
    }
}
"""
NFT_FOR_SOME = """\
table ip filter {
    chain input {
        type filter hook input priority filter; policy drop;
        ct state established accept
        ip saddr 192.168.7.0/24 drop
        tcp dport 22 accept
        ip saddr 10.99.0.0/24 accept
    }
}
"""
NFT_OF_IPTABLES = """\
table ip filter {
    chain INPUT {
        type filter hook input priority filter; policy accept;
        ct state related,established counter packets 0 bytes 0 accept
        meta l4proto icmp counter packets 0 bytes 0 accept
        iifname "lo" counter packets 0 bytes 0 accept
        meta l4proto tcp ct state new tcp dport 22 counter packets 0 bytes 0 accept
        meta l4proto tcp tcp dport { 8786, 13337-13338 } counter packets 0 bytes 0 accept
        counter packets 0 bytes 0 reject with icmp type host-prohibited
    }

    chain FORWARD {
        type filter hook forward priority filter; policy accept;
        counter packets 0 bytes 0 reject with icmp type host-prohibited
    }

    chain OUTPUT {
        type filter hook output priority filter; policy accept;
    }
}
"""
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
