//! What a PG keeps: log entries, object attributes, keys. Input: the bytes of one of them.
#![no_main]

use bytes::Bytes;
use spirula_fuzz::round_trip;
use spirula_messages::cluster::pg::PgInfo;
use spirula_pg::exec::{ObjectInfo, ObjectState, SnapSet, user_name};
use spirula_pg::{LogEntry, info_key, parse_info_key};

libfuzzer_sys::fuzz_target!(|data: &[u8]| spirula_fuzz::bounded(256, data, |data| {
    round_trip::<LogEntry>(data);
    round_trip::<PgInfo>(data);
    round_trip::<SnapSet>(data);
    if let Some(info) = round_trip::<ObjectInfo>(data) {
        let again = ObjectState::from_info_attr(&info.to_attr()).expect("own attribute is \
            readable");
        assert_eq!(again.info, info);
    }
    let _ = ObjectState::from_info_attr(data);
    if let Some(pg) = parse_info_key(data) {
        assert_eq!(info_key(pg), data);
    }
    user_name(&Bytes::copy_from_slice(data));
}));
