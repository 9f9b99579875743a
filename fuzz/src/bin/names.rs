//! Who, where and what: addresses, names, ids, object identities. Input: the bytes to decode.
#![no_main]

use spirula_fuzz::round_trip;
use spirula_types::{AddrVec, EVersion, EntityAddr, EntityName, HObject, ObjectLocator, PgId, ReqId, SpgId, Uuid};

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    round_trip::<EntityAddr>(data);
    round_trip::<EntityName>(data);
    round_trip::<ObjectLocator>(data);
    round_trip::<ReqId>(data);
    round_trip::<SpgId>(data);
    round_trip::<EVersion>(data);
    if let Some(a) = round_trip::<AddrVec>(data) {
        let _ = (a.to_string(), a.msgr2().plain());
    }
    if let Some(p) = round_trip::<PgId>(data) {
        assert_eq!(PgId::parse(&p.to_string()), Some(p));
    }
    if let Some(o) = round_trip::<HObject>(data) {
        assert!(o >= HObject::min() && (o.max || o < HObject::max()));
        let _ = (o.pg(1 + (o.hash >> 20)), format!("{o:?}"));
    }
    if let Ok(s) = std::str::from_utf8(data) {
        if let Some(u) = Uuid::parse(s) {
            assert_eq!(Uuid::parse(&u.to_string()), Some(u));
        }
        if let Some(p) = PgId::parse(s) {
            assert_eq!(PgId::parse(&p.to_string()), Some(p));
        }
    }
}));
