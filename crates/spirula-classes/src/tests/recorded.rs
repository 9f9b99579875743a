//! Calls that real clients made of a real cluster (`tests/data/vectors/cls.jsonl`).

use crate::{CLASSES, Flags, Unknown, find};

struct Recorded {
    class: String,
    method: String,
    /// `R`, `W` and `P` as registered; empty where there is no such method.
    registered: String,
}

fn field<'a>(line: &'a str, key: &str) -> &'a str {
    let from = line.find(&format!("\"{key}\": \"")).expect(key) + key.len() + 5;
    let rest = &line[from..];
    &rest[..rest.find('"').unwrap()]
}

fn recorded() -> Vec<Recorded> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/vectors/cls.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let call = |line: &str| Recorded {
        class: field(line, "class").to_owned(),
        method: field(line, "method").to_owned(),
        registered: field(line, "registered").to_owned(),
    };
    text.lines().map(call).collect()
}

#[test]
fn methods_are_registered_as_in_ceph() {
    let mut checked = 0;
    for r in recorded() {
        let flag = |c| r.registered.contains(c);
        match find(r.class.as_bytes(), r.method.as_bytes()) {
            Ok((_, method)) => {
                let flags = Flags { read: flag('R'), write: flag('W'), promote: flag('P') };
                assert_eq!(method.flags, flags, "{}.{}", r.class, r.method);
                checked += 1;
            }
            Err(Unknown::Method) => assert_eq!(r.registered, "", "{}.{}", r.class, r.method),
            Err(Unknown::Class) => assert!(CLASSES.iter().all(|c| c.name != r.class)),
        }
    }
    assert!(checked > 25, "only {checked}");
}
