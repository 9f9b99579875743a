//! Capabilities. Input: a byte that chooses the service, then a text.
#![no_main]

use spirula_auth::caps::{self, Args, CapsError, MonAccess, MonCaps, OsdAccess, OsdCaps};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let service = ["mon", "osd", "mgr", "mds"][usize::from(first % 4)];
    match caps::validate(service, text) {
        Ok(()) if text != "allow" => {
            let more = format!("{}, allow r", text.trim_end());
            assert!(more.len() > caps::MAX_TEXT || caps::validate(service, &more).is_ok(), "{more:?}");
        }
        Ok(()) => {}
        Err(CapsError::Stopped { at, .. }) => assert!(text.is_char_boundary(at)),
        Err(e) => assert!(!e.to_string().is_empty()),
    }
    let apps = Default::default();
    if let Ok(caps) = text.parse::<OsdCaps>() {
        let place = |write| OsdAccess {
            pool: "p",
            apps: &apps,
            namespace: "n",
            object: "o",
            read: true,
            write,
            classes: &[],
            addr: None,
        };
        // Who may do more may do less.
        assert!(!caps.allows(&place(true)) || caps.allows(&place(false)));
    }
    if let Ok(caps) = text.parse::<MonCaps>() {
        let args = Args::from([("k".to_owned(), "v".to_owned())]);
        let ask = |write| MonAccess {
            entity: "client.a",
            service: "osd",
            command: "osd dump",
            args: &args,
            read: true,
            write,
            exec: false,
            addr: None,
        };
        assert!(!caps.allows(&ask(true)) || caps.allows(&ask(false)));
    }
});
