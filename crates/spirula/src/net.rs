//! Addresses: which are ours, which the monitors'.
//!
//! `mon_host` is a list of `HOST[:PORT]`, `v2:HOST:PORT`, `[v2:HOST:PORT,v1:HOST:PORT]`, with
//! IPv6 in brackets, separated by commas, semicolons or spaces; a host may be a name. Where there
//! is none, the DNS SRV records `_ceph-mon._tcp` are asked ([`crate::srv`]).

use anyhow::{Context, bail};
use spirula_settings::Settings;
use spirula_types::{AddrVec, EntityAddr};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Port of monitors that is understood if none is named.
pub const MON_PORT: u16 = 3300;

/// A network, `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    bits: u8,
}

impl Network {
    /// Understands `10.0.0.0/8` or `fd00::/8`; a bare address is a network of one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no network; write for example 10.0.0.0/8 or fd00::/64");
        let (base, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let base: IpAddr = base.trim().parse().map_err(|_| wrong())?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(b) => b.trim().parse().ok().filter(|b| *b <= most).ok_or_else(wrong)?,
        };
        Ok(Self { base, bits })
    }

    /// Is the address in it?
    pub fn has(&self, ip: IpAddr) -> bool {
        let same = |a: u128, b: u128, width: u32| {
            let shift = width - u32::from(self.bits).min(width);
            shift == 128 || a >> shift == b >> shift
        };
        match (self.base, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(u32::from(a).into(), u32::from(b).into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(u128::from(a), u128::from(b), 128),
            _ => false,
        }
    }
}

/// The addresses of this machine, as `/proc/net` lists them.
pub fn own_addresses() -> Vec<IpAddr> {
    let mut out = Vec::new();
    let routes = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let mut last = None;
    for line in routes.lines() {
        let t = line.trim();
        if let Some(ip) = t.strip_prefix("|-- ") {
            last = ip.parse::<IpAddr>().ok();
        } else if t.starts_with("/32 host LOCAL")
            && let Some(ip) = last.take()
            && !out.contains(&ip)
        {
            out.push(ip);
        }
    }
    let six = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    for line in six.lines() {
        let hex = line.split_whitespace().next().unwrap_or_default();
        if let Ok(n) = u128::from_str_radix(hex, 16) {
            let ip = IpAddr::V6(n.into());
            // Link-local addresses mean nothing without their interface.
            if hex.len() == 32 && !out.contains(&ip) && n >> 118 != 0x3fa {
                out.push(ip);
            }
        }
    }
    out
}

/// The address to listen on for `which` (`public` or `cluster`): its `_addr`, else one in its
/// `_network`; `None` if neither is set.
///
/// # Errors
/// When an address or network is malformed, or none of ours is in the network.
pub fn chosen(
    settings: &Settings,
    which: &str,
    own: &[IpAddr],
) -> anyhow::Result<Option<SocketAddr>> {
    let option = format!("{which}_addr");
    if let Some(text) = settings.given(&option).filter(|a| !a.is_empty() && *a != "-") {
        let addr = parse_addr(text, 0).map_err(|e| anyhow::anyhow!("{option}: {e}"))?;
        return Ok(Some(addr));
    }
    let option = format!("{which}_network");
    let Some(text) = settings.given(&option).filter(|n| !n.trim().is_empty()) else {
        return Ok(None);
    };
    let networks = text.split([',', ' ', ';']).filter(|n| !n.is_empty()).map(Network::parse);
    let networks =
        networks.collect::<Result<Vec<_>, _>>().map_err(|e| anyhow::anyhow!("{option}: {e}"))?;
    let (v4, v6) = (settings.is_on("ms_bind_ipv4"), settings.is_on("ms_bind_ipv6"));
    // IPv6 only if wanted, or if only such networks are named.
    let wanted = |ip: &IpAddr| {
        if ip.is_ipv4() { v4 } else { v6 || networks.iter().all(|n| n.base.is_ipv6()) }
    };
    let found = networks.iter().find_map(|n| own.iter().find(|ip| n.has(**ip) && wanted(ip)));
    match found {
        Some(ip) => Ok(Some((*ip, 0).into())),
        None => {
            let list: Vec<String> = own.iter().map(ToString::to_string).collect();
            bail!(
                "{option} = {text}: none of this machine's addresses is in it ({})",
                list.join(", ")
            )
        }
    }
}

/// Our address on the way to `to`, as the kernel's routes have it.
///
/// # Errors
/// When there is no route.
pub fn towards(to: SocketAddr) -> anyhow::Result<IpAddr> {
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).context("make a socket")?;
    // Nothing is sent: a datagram socket's connect only chooses the route.
    socket.connect(to).with_context(|| format!("find a route to {to}"))?;
    Ok(socket.local_addr().context("ask for our address")?.ip())
}

/// One address: `10.0.0.1`, `10.0.0.1:3300`, `fd00::1`, `[fd00::1]:3300`, with or without `v2:`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_addr(text: &str, port: u16) -> Result<SocketAddr, String> {
    let t = text.trim();
    let t = t.strip_prefix("v2:").unwrap_or(t);
    // A nonce behind the address means nothing here.
    let t = t.split('/').next().unwrap_or(t);
    if let Ok(addr) = t.parse::<SocketAddr>() {
        return Ok(addr);
    }
    let bare = t.strip_prefix('[').and_then(|b| b.strip_suffix(']')).unwrap_or(t);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok((ip, port).into());
    }
    Err(format!(
        "'{text}' is no address; write for example 10.0.0.1, 10.0.0.1:3300 or [fd00::1]:3300"
    ))
}

/// The monitors of `mon_host`, names resolved. Monitors that only have a v1 address are left out:
/// we speak msgr2.
///
/// # Errors
/// When an entry is malformed or a name has no address.
pub fn mon_host(text: &str) -> anyhow::Result<Vec<AddrVec>> {
    let mut out = Vec::new();
    for entry in entries(text) {
        let inner =
            entry.strip_prefix('[').and_then(|e| e.strip_suffix(']')).filter(|e| e.contains(','));
        let parts: Vec<&str> =
            inner.unwrap_or(entry).split(',').map(str::trim).filter(|p| !p.is_empty()).collect();
        let v2 = parts.iter().find(|p| !p.starts_with("v1:") && !p.starts_with("any:"));
        let Some(part) = v2 else { continue };
        for addr in resolve(part).with_context(|| format!("mon_host = {text}"))? {
            let one = AddrVec::one(EntityAddr::v2(addr, 0));
            if !out.contains(&one) {
                out.push(one);
            }
        }
    }
    Ok(out)
}

/// Splits at commas, semicolons and spaces that are not in brackets.
fn entries(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let (mut depth, mut from) = (0u32, 0);
    for (i, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            ',' | ';' | ' ' | '\t' if depth == 0 => {
                out.push(&text[from..i]);
                from = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[from..]);
    out.into_iter().map(str::trim).filter(|e| !e.is_empty()).collect()
}

/// An address, or the addresses of a name.
fn resolve(part: &str) -> anyhow::Result<Vec<SocketAddr>> {
    if let Ok(addr) = parse_addr(part, MON_PORT) {
        return Ok(vec![addr]);
    }
    let name = part.strip_prefix("v2:").unwrap_or(part);
    let (host, port) = match name.rsplit_once(':') {
        Some((host, port)) => {
            (host, port.parse().with_context(|| format!("'{part}': '{port}' is no port"))?)
        }
        None => (name, MON_PORT),
    };
    let found: Vec<SocketAddr> =
        (host, port).to_socket_addrs().with_context(|| format!("find '{host}'"))?.collect();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_settings::Source;

    fn hosts(text: &str) -> Vec<String> {
        mon_host(text).unwrap().iter().map(|a| a.msgr2().addr.unwrap().to_string()).collect()
    }

    #[test]
    fn mon_host_in_every_form() {
        assert_eq!(hosts("10.0.0.1"), ["10.0.0.1:3300"]);
        assert_eq!(
            hosts("10.0.0.1:3301, 10.0.0.2;10.0.0.3"),
            ["10.0.0.1:3301", "10.0.0.2:3300", "10.0.0.3:3300"]
        );
        let both = "[v2:10.0.0.1:3300/0,v1:10.0.0.1:6789/0] [v2:[fd00::1]:3300,v1:[fd00::1]:6789]";
        assert_eq!(hosts(both), ["10.0.0.1:3300", "[fd00::1]:3300"]);
        assert_eq!(
            hosts("[fd00::2]:3302 v2:[fd00::3]:1 [fd00::4]"),
            ["[fd00::2]:3302", "[fd00::3]:1", "[fd00::4]:3300"]
        );
        assert_eq!(hosts("v1:10.0.0.1:6789"), Vec::<String>::new());
        assert_eq!(hosts("localhost:3305").last().map(|h| h.ends_with(":3305")), Some(true));
        assert!(mon_host("10.0.0.1:x").is_err());
    }

    #[test]
    fn networks_hold_what_they_should() {
        let has = |n: &str, ip: &str| Network::parse(n).unwrap().has(ip.parse().unwrap());
        assert!(has("10.1.0.0/16", "10.1.2.3") && !has("10.1.0.0/16", "10.2.0.1"));
        assert!(has("0.0.0.0/0", "1.2.3.4") && !has("0.0.0.0/0", "::1"));
        assert!(
            has("fd00::/8", "fd12::1") && has("::/0", "::1") && !has("fd00::/64", "fd00:0:0:1::1")
        );
        assert!(has("10.0.0.1", "10.0.0.1") && !has("10.0.0.1", "10.0.0.2"));
        assert!(Network::parse("10.0.0.0/33").is_err() && Network::parse("ten").is_err());
    }

    #[test]
    fn address_comes_from_addr_then_network() {
        let own: Vec<IpAddr> = ["127.0.0.1", "10.0.0.5", "192.168.1.5", "fd00::5"]
            .map(|a| a.parse().unwrap())
            .to_vec();
        let mut s = Settings::default();
        assert_eq!(chosen(&s, "public", &own).unwrap(), None);
        s.set(Source::File, "public_network", "172.16.0.0/12, 192.168.0.0/16").unwrap();
        assert_eq!(chosen(&s, "public", &own).unwrap(), Some(([192, 168, 1, 5], 0).into()));
        s.set(Source::File, "public_addr", "10.0.0.5").unwrap();
        assert_eq!(chosen(&s, "public", &own).unwrap(), Some(([10, 0, 0, 5], 0).into()));
        s.set(Source::File, "cluster_network", "fd00::/64").unwrap();
        assert_eq!(chosen(&s, "cluster", &own).unwrap().unwrap().to_string(), "[fd00::5]:0");
        s.set(Source::File, "cluster_network", "172.16.0.0/12").unwrap();
        let e = chosen(&s, "cluster", &own).unwrap_err().to_string();
        assert!(e.contains("cluster_network") && e.contains("10.0.0.5"), "{e}");
    }

    #[test]
    fn loopback_is_among_our_addresses() {
        assert!(own_addresses().contains(&IpAddr::from([127, 0, 0, 1])));
    }
}
