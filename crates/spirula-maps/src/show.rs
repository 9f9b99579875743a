//! How Ceph prints addresses and sets, shared by the dumps.

use crate::json::object;
use serde_json::Value;
use spirula_types::{AddrVec, EntityAddr};
use std::fmt::Display;

fn sockaddr(a: &EntityAddr) -> String {
    a.addr.map_or_else(|| "(unrecognized address family 0)".to_string(), |s| s.to_string())
}

/// An address in text: kind "any" (blocklist entries) has no prefix.
pub fn addr_text(a: &EntityAddr) -> String {
    let kind = match a.kind {
        EntityAddr::KIND_NONE => return "-".to_string(),
        EntityAddr::KIND_LEGACY => "v1:",
        EntityAddr::KIND_MSGR2 => "v2:",
        crate::osdmap::CIDR => "cidr:",
        _ => "",
    };
    format!("{kind}{}/{}", sockaddr(a), a.nonce)
}

/// Addresses in text: none is nothing at all, several are in brackets.
pub fn addrs_text(v: &AddrVec) -> String {
    match v.0.as_slice() {
        [] => String::new(),
        [one] => addr_text(one),
        many => format!("[{}]", many.iter().map(addr_text).collect::<Vec<_>>().join(",")),
    }
}

/// The address old tools know: the v1 one, else the first, without a kind.
pub fn legacy_text(v: &AddrVec) -> String {
    let legacy = v.0.iter().find(|a| a.kind == EntityAddr::KIND_LEGACY);
    let a = legacy.or_else(|| v.0.first()).copied().unwrap_or_default();
    format!("{}/{}", sockaddr(&a), a.nonce)
}

fn addrvec_list(v: &AddrVec) -> Value {
    let one = |a: &EntityAddr| {
        let kind = match a.kind {
            EntityAddr::KIND_NONE => "none",
            EntityAddr::KIND_LEGACY => "v1",
            EntityAddr::KIND_MSGR2 => "v2",
            EntityAddr::KIND_ANY => "any",
            _ => "???",
        };
        object! { "type" => kind, "addr" => sockaddr(a), "nonce" => a.nonce }
    };
    Value::Array(v.0.iter().map(one).collect())
}

/// `{"addrvec": […]}`.
pub fn addrs_json(v: &AddrVec) -> Value {
    object! { "addrvec" => addrvec_list(v) }
}

/// A client of the manager: its name beside its addresses.
pub fn named_addrs_json(name: &str, v: &AddrVec) -> Value {
    object! { "name" => name, "addrvec" => addrvec_list(v) }
}

/// Items joined by commas.
pub fn commas<T: Display>(items: impl IntoIterator<Item = T>) -> String {
    items.into_iter().map(|i| i.to_string()).collect::<Vec<_>>().join(",")
}
