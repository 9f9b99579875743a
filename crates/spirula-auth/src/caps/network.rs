//! `network A/N`: a grant that holds only for peers from there.

use std::net::IpAddr;

/// A network. One that does not parse matches nobody (Ceph accepts such texts and grants nothing).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    parsed: Option<(IpAddr, u8)>,
}

impl Network {
    /// From `address/prefix-length`.
    pub fn new(text: &str) -> Self {
        let parsed = (|| {
            let (addr, len) = text.split_once('/')?;
            let addr: IpAddr = addr.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
            if len.is_empty() || !len.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            let len: u8 = len.parse().ok()?;
            let max = if addr.is_ipv4() { 32 } else { 128 };
            (len <= max).then_some((addr, len))
        })();
        Self { parsed }
    }

    /// True if `addr` is in it.
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.parsed, addr.to_canonical()) {
            (Some((IpAddr::V4(net), len)), IpAddr::V4(a)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                (net.to_bits() ^ a.to_bits()) & mask == 0
            }
            (Some((IpAddr::V6(net), len)), IpAddr::V6(a)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                (net.to_bits() ^ a.to_bits()) & mask == 0
            }
            _ => false,
        }
    }
}

/// True if the grant's network, if any, contains the peer. A peer without an address is in none.
pub(crate) fn admits(network: Option<&Network>, addr: Option<IpAddr>) -> bool {
    network.is_none_or(|n| addr.is_some_and(|a| n.contains(a)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_own_and_bad_ones_nobody() {
        for (net, addr, inside) in [
            ("10.0.0.0/8", "10.255.1.2", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3/8", "10.9.9.9", true),
            ("1.2.3.4/32", "1.2.3.4", true),
            ("1.2.3.4/32", "1.2.3.5", false),
            ("0.0.0.0/0", "200.1.1.1", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "fe80::1", true),
            ("fe80::/64", "fe80::9", true),
            ("fe80::/64", "fe80:0:0:1::9", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("10.1.1.1", "10.1.1.1", false),
            ("10.0.0.0/33", "10.0.0.1", false),
            ("10.0.0.0/", "10.0.0.1", false),
            ("ba", "10.0.0.1", false),
        ] {
            assert_eq!(Network::new(net).contains(addr.parse().unwrap()), inside, "{net} {addr}");
        }
        assert!(admits(None, None));
        assert!(!admits(Some(&Network::new("0.0.0.0/0")), None));
    }
}
