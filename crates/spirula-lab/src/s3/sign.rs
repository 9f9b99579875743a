//! Signatures of requests to S3, version 4 ("AWS4-HMAC-SHA256").

use ring::digest::{SHA256, digest};
use ring::hmac::{HMAC_SHA256, Key, Tag, sign};

/// Who asks.
#[derive(Clone)]
pub struct Keys {
    /// Names the user.
    pub access: String,
    /// Signs.
    pub secret: String,
    /// What the endpoint calls its place.
    pub region: String,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys of {} in {}", self.access, self.region)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// What names a body in a request.
pub fn hash(body: &[u8]) -> String {
    hex(digest(&SHA256, body).as_ref())
}

/// Text as it stands in a path or query: `/` as it is in a path alone.
pub fn encoded(text: &str, path: bool) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b) || path && b == b'/';
    text.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// A query, as it is sent and as it is signed: by name in order.
pub fn query(parts: &[(&str, &str)]) -> String {
    let mut all: Vec<(String, String)> =
        parts.iter().map(|(n, v)| (encoded(n, false), encoded(v, false))).collect();
    all.sort();
    all.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join("&")
}

/// A request that is to be signed.
pub struct Asked<'a> {
    /// `GET` and its like.
    pub method: &'a str,
    /// The path, encoded.
    pub path: &'a str,
    /// The query, encoded and in order.
    pub query: &'a str,
    /// The header `Host`.
    pub host: &'a str,
    /// [`hash`] of the body.
    pub body: &'a str,
    /// `20261123T113707Z`.
    pub at: &'a str,
}

/// The header `Authorization`.
pub fn authorization(keys: &Keys, r: &Asked<'_>) -> String {
    let signed = "host;x-amz-content-sha256;x-amz-date";
    let Asked { method, path, query, host, body, at } = r;
    let canonical = format!(
        "{method}\n{path}\n{query}\nhost:{host}\nx-amz-content-sha256:{body}\nx-amz-date:{at}\n\n{signed}\n{body}"
    );
    let day = at.get(..8).unwrap_or_default();
    let scope = format!("{day}/{}/s3/aws4_request", keys.region);
    let text = format!("AWS4-HMAC-SHA256\n{at}\n{scope}\n{}", hash(canonical.as_bytes()));
    let with =
        |key: &[u8], text: &str| -> Tag { sign(&Key::new(HMAC_SHA256, key), text.as_bytes()) };
    let mut key = with(format!("AWS4{}", keys.secret).as_bytes(), day);
    for word in [keys.region.as_str(), "s3", "aws4_request"] {
        key = with(key.as_ref(), word);
    }
    let signature = hex(with(key.as_ref(), &text).as_ref());
    format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={signed}, Signature={signature}",
        keys.access
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of Amazon's documentation.
    #[test]
    fn signatures_are_those_of_the_documentation() {
        let keys = Keys {
            access: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            region: "us-east-1".into(),
        };
        for (query, signature) in [
            (
                query(&[("lifecycle", "")]),
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                query(&[("prefix", "J"), ("max-keys", "2")]),
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            let asked = Asked {
                method: "GET",
                path: "/",
                query: &query,
                host: "examplebucket.s3.amazonaws.com",
                body: &hash(b""),
                at: "20130524T000000Z",
            };
            let said = authorization(&keys, &asked);
            assert!(said.ends_with(&format!("Signature={signature}")), "{query}: {said}");
        }
        assert!(!format!("{keys:?}").contains("wJalr"), "a secret is not told");
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(encoded("a b/ü+~", true), "a%20b/%C3%BC%2B~");
        assert_eq!(encoded("a/b", false), "a%2Fb");
    }
}
