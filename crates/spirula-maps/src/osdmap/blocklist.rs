//! Who is shut out: single clients, all clients of a host, and ranges of addresses.
//!
//! A map holds them in one list, in which ranges are entries of kind [`CIDR`]; they come last in
//! it. On the wire they stand apart, at the end of the OSDs' section, and only where there are any:
//! so do the maps of Ceph 16.2 and later, and whoever does not know of ranges leaves that end out.

use spirula_encoding::{Encoder, UTime};
use spirula_types::EntityAddr;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Kind of an address that stands for all that begin with the same bits: its nonce says how many.
pub const CIDR: u32 = 4;
/// In the order of addresses ranges come after all others; this is not after any of them.
pub const RANGES: EntityAddr = EntityAddr { kind: CIDR, nonce: 0, addr: None };
/// Version of the OSDs' section, of a map and of what changes one, from which on it has ranges.
pub(super) const RANGES_SINCE: u8 = 11;

/// Is this entry a range of addresses?
pub(super) fn is_range(entry: &EntityAddr) -> bool {
    entry.kind == CIDR
}

/// Is this address in the range?
fn is_in(addr: &EntityAddr, range: &EntityAddr) -> bool {
    let (Some(addr), Some(head)) = (addr.addr, range.addr) else { return false };
    let differing = match (head.ip(), addr.ip().to_canonical()) {
        (IpAddr::V4(head), IpAddr::V4(addr)) => u128::from(head.to_bits() ^ addr.to_bits()) << 96,
        (IpAddr::V6(head), IpAddr::V6(addr)) => head.to_bits() ^ addr.to_bits(),
        (IpAddr::V6(head), IpAddr::V4(addr)) => head.to_bits() ^ addr.to_ipv6_mapped().to_bits(),
        (IpAddr::V4(_), IpAddr::V6(_)) => return false,
    };
    differing.leading_zeros() >= range.nonce.min(u128::BITS)
}

/// Is any of these?
pub(super) fn has_ranges<'a>(entries: impl IntoIterator<Item = &'a EntityAddr>) -> bool {
    entries.into_iter().any(is_range)
}

/// The bytes by which Ceph orders addresses in maps: their memory, which is the wire form
/// from the kind on (so nonces compare by their lowest byte first).
fn sort_key(a: &EntityAddr) -> Vec<u8> {
    spirula_encoding::to_vec(a)
}

/// Writes the ranges of a list, or all but them, in Ceph's order.
pub(super) fn put_entries(o: &mut Encoder, list: &BTreeMap<EntityAddr, UTime>, ranges: bool) {
    let those = list.iter().filter(|(a, _)| is_range(a) == ranges);
    let mut rows: Vec<(Vec<u8>, UTime)> = those.map(|(a, t)| (sort_key(a), *t)).collect();
    rows.sort();
    o.list(rows, |o, (a, t)| {
        o.raw(&a);
        o.put(&t);
    });
}

/// The entries that shut out the client at this address: those of the client itself and those of
/// all of its host.
fn keys_of(addr: &EntityAddr) -> impl Iterator<Item = EntityAddr> {
    let nonce = addr.nonce;
    // Since Nautilus entries are of kind "any"; older ones are taken as well.
    let kinds = [EntityAddr::KIND_ANY, EntityAddr::KIND_MSGR2, EntityAddr::KIND_LEGACY];
    addr.addr.into_iter().flat_map(move |sock| {
        let both = [(sock, nonce), (SocketAddr::new(sock.ip(), 0), 0)];
        kinds
            .into_iter()
            .flat_map(move |kind| both.map(|(a, nonce)| EntityAddr { kind, nonce, addr: Some(a) }))
    })
}

/// Does a blocklist shut out the client at this address (with its nonce)? `has` says whether an
/// entry is in the list; `ranges` are its entries from [`RANGES`] on.
pub fn is_shut_out<'a>(
    addr: &EntityAddr,
    has: impl Fn(&EntityAddr) -> bool,
    ranges: impl IntoIterator<Item = &'a EntityAddr>,
) -> bool {
    keys_of(addr).any(|key| has(&key)) || ranges.into_iter().any(|range| is_in(addr, range))
}
