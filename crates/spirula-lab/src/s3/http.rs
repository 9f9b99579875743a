//! As much of HTTP/1.1 as a load needs: one connection, one request at a time, bodies of known
//! length or in chunks.
//!
//! Without encryption: what is measured is the gateway, and those of a cluster listen beside it.
//! Whatever the other side sends has a bound.

use crate::bail;
use crate::prelude::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};

/// Bytes of a line of a head, and lines of one, at most.
const LINE: u64 = 16 << 10;
const LINES: usize = 128;
/// Bytes of a body, at most.
const BODY: u64 = 256 << 20;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// An answer.
#[derive(Debug, PartialEq)]
pub struct Answer {
    /// 200 and its like.
    pub status: u16,
    /// What came.
    pub body: Vec<u8>,
}

/// A connection, made when it is needed.
pub struct Http {
    /// `HOST:PORT`, as in the header `Host`.
    pub host: String,
    link: Option<BufReader<TcpStream>>,
}

/// Host and port of `http://HOST[:PORT]`.
///
/// # Errors
/// When it is something else.
pub fn host_of(url: &str) -> Result<String> {
    let Some(rest) = url.strip_prefix("http://") else {
        bail!("'{url}': an endpoint is named http://HOST:PORT; others than http are not spoken");
    };
    let host = rest.trim_end_matches('/');
    if host.is_empty() || host.contains(['/', '?', '@', ' ']) {
        bail!("'{url}': an endpoint is named http://HOST:PORT");
    }
    let has_port = host
        .rsplit_once(':')
        .is_some_and(|(h, p)| p.parse::<u16>().is_ok() && (!h.contains(':') || h.ends_with(']')));
    Ok(if has_port { host.to_owned() } else { format!("{host}:80") })
}

impl Http {
    /// To this host.
    pub fn new(host: &str) -> Self {
        Self { host: host.to_owned(), link: None }
    }

    fn connect(&self) -> Result<BufReader<TcpStream>> {
        let addr =
            self.host.to_socket_addrs().with_context(|| format!("find {}", self.host))?.next();
        let addr = addr.with_context(|| format!("{} has no address", self.host))?;
        let link = TcpStream::connect_timeout(&addr, Duration::from_secs(10));
        let link = link.with_context(|| format!("connect to {}", self.host))?;
        link.set_nodelay(true)
            .and_then(|()| link.set_read_timeout(Some(PATIENCE)))
            .and_then(|()| link.set_write_timeout(Some(PATIENCE)))
            .context("set up the connection")?;
        Ok(BufReader::with_capacity(64 << 10, link))
    }

    /// Sends a request and waits for its answer. A connection that was used before and is found
    /// closed is made anew once.
    ///
    /// # Errors
    /// When there is no answer, or none that can be understood.
    pub fn ask(&mut self, head: &str, body: &[u8]) -> Result<Answer> {
        let used = self.link.is_some();
        match self.once(head, body) {
            Err(_) if used => self.once(head, body),
            answer => answer,
        }
    }

    fn once(&mut self, head: &str, body: &[u8]) -> Result<Answer> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.connect()?,
        };
        let to = link.get_mut();
        to.write_all(head.as_bytes())
            .and_then(|()| to.write_all(body))
            .with_context(|| format!("write to {}", self.host))?;
        let no_body = head.starts_with("HEAD ");
        let (answer, goes_on) =
            read(&mut link, no_body).with_context(|| format!("read from {}", self.host))?;
        if goes_on {
            self.link = Some(link);
        }
        Ok(answer)
    }
}

fn line(link: &mut impl BufRead) -> Result<String> {
    let mut text = String::new();
    link.take(LINE).read_line(&mut text)?;
    if !text.ends_with('\n') {
        bail!("the connection ended, or a line of the answer is too long");
    }
    Ok(text.trim_end().to_owned())
}

/// An answer, and whether the connection may be used again.
fn read(link: &mut impl BufRead, no_body: bool) -> Result<(Answer, bool)> {
    let first = line(link)?;
    let status = first
        .strip_prefix("HTTP/1.")
        .and_then(|r| r.split(' ').nth(1))
        .and_then(|s| s.parse().ok());
    let Some(status) = status else { bail!("that is no HTTP: '{}'", first.escape_debug()) };
    let (mut length, mut chunked, mut goes_on, mut ended) =
        (None, false, first.starts_with("HTTP/1.1"), false);
    for _ in 0..LINES {
        let text = line(link)?;
        if text.is_empty() {
            ended = true;
            break;
        }
        let (name, value) = text.split_once(':').unwrap_or((&text, ""));
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                length = Some(value.parse::<u64>().context("a length that is no number")?)
            }
            "transfer-encoding" => chunked = value.eq_ignore_ascii_case("chunked"),
            "connection" => goes_on = !value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    if !ended {
        bail!("the head of the answer has no end");
    }
    let mut body = Vec::new();
    if no_body || status == 204 || status == 304 {
        return Ok((Answer { status, body }, goes_on));
    }
    if chunked {
        loop {
            let text = line(link)?;
            let n = u64::from_str_radix(text.split(';').next().unwrap_or_default().trim(), 16)
                .context("a chunk without length")?;
            if n > BODY || body.len() as u64 + n > BODY {
                bail!("the answer is too long");
            }
            take(link, n, &mut body)?;
            // Behind the data, or behind the last chunk: nobody here is told trailers.
            if !line(link)?.is_empty() {
                bail!("a chunk has no end");
            }
            if n == 0 {
                break;
            }
        }
    } else if let Some(n) = length {
        if n > BODY {
            bail!("the answer is too long");
        }
        take(link, n, &mut body)?;
    } else {
        goes_on = false;
        link.take(BODY).read_to_end(&mut body)?;
    }
    Ok((Answer { status, body }, goes_on))
}

fn take(link: &mut impl BufRead, n: u64, body: &mut Vec<u8>) -> Result<()> {
    if link.take(n).read_to_end(body)? as u64 != n {
        bail!("the connection ended in the middle of an answer");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<(Answer, bool)> {
        read(&mut text.as_bytes(), false)
    }

    #[test]
    fn answers_are_read() {
        let answer = |status, body: &str| Answer { status, body: body.into() };
        let (a, goes_on) =
            of("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\n\r\nabcHTTP").unwrap();
        assert_eq!((a, goes_on), (answer(200, "abc"), true));
        let (a, _) = of("HTTP/1.1 200 OK\r\ntransfer-encoding: \
                Chunked\r\n\r\n3\r\nabc\r\n1;x\r\nd\r\n0\r\n\r\n")
        .unwrap();
        assert_eq!(a, answer(200, "abcd"));
        assert_eq!(of("HTTP/1.1 204 No\r\n\r\n").unwrap(), (answer(204, ""), true));
        assert_eq!(
            of("HTTP/1.1 404 No\r\nConnection: close\r\n\r\nall").unwrap(),
            (answer(404, "all"), false)
        );
        let long = "x".repeat(LINE as usize + 1);
        for bad in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n",
            &format!("HTTP/1.1 200 OK\r\n{long}\r\n\r\n"),
            &format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(LINES + 1)),
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn endpoints_are_named() {
        assert_eq!(host_of("http://a:8/").unwrap(), "a:8");
        assert_eq!(host_of("http://a").unwrap(), "a:80");
        assert_eq!(host_of("http://[::1]:7480").unwrap(), "[::1]:7480");
        assert_eq!(host_of("http://[::1]").unwrap(), "[::1]:80");
        for bad in ["https://a", "a:8", "http://", "http://a/b"] {
            assert!(host_of(bad).is_err(), "{bad}");
        }
    }
}
