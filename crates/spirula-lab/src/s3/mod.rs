//! `spirula bench s3`: objects of an S3 endpoint are put, read, listed and deleted; a gateway of
//! the cluster's (`spirula up --with rgw`), or any other.
//!
//! * [`http`] — connections; [`sign`] — signatures of requests
//!
//! Each of the threads has a connection and at most one request under way; latency counts from
//! sending to the answer.
//!
//! **Nothing is left.** Objects are called `spirula-bench.HOST.WHERE.PID.BEGAN.THREAD.N`: the name
//! says which process wrote them. A run first removes those of processes that are gone, among those
//! that were on this machine ([`crate::litter`] says why only there), and in the end its own; where
//! none was named, the bucket goes, too, if nobody has an object in it.

pub mod http;
pub mod sign;

use crate::args::{Lab, S3Args, S3Kind};
use crate::bail;
use crate::expect::bottleneck;
use crate::litter::{born, here};
use crate::load::{Draw, noise};
use crate::prelude::*;
use crate::progress::{bytes_rate, ms, size};
use crate::record::Record;
use crate::shown::Shown;
use crate::used::{Watch, hostname};
use http::{Answer, Http, host_of};
use sign::{Asked, Keys, authorization, encoded, hash, query};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The bucket where none is named.
const BUCKET: &str = "spirula-bench";
/// Objects of one list.
const LISTED: &str = "1000";
/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);

/// Where, and as whom.
#[derive(Clone, Debug)]
struct Site {
    host: String,
    keys: Keys,
    bucket: String,
}

impl Site {
    /// What the options name; else the gateway of a `spirula up`.
    fn find(a: &S3Args) -> Result<Self> {
        let file = a.keys.clone().or_else(|| Some(a.dir.join("rgw.json")).filter(|f| f.exists()));
        let facts: Value = match &file {
            Some(file) => {
                let text =
                    std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
                serde_json::from_slice(&text)
                    .with_context(|| format!("{} is not JSON", file.display()))?
            }
            None => Value::Null,
        };
        let fact = |name: &str| facts[name].as_str().map(str::to_owned);
        let variable = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let endpoint = a.endpoint.clone().or_else(|| fact("url"));
        let endpoint = endpoint.context(
            "no endpoint is named: give --endpoint http://HOST:PORT, or --dir of a cluster that \
                was started with 'spirula up --with rgw'",
        )?;
        let missing = || {
            "no keys are named: give --keys FILE (JSON with access_key and \
            secret_key), or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        };
        Ok(Self {
            host: host_of(&endpoint)?,
            keys: Keys {
                access: fact("access_key")
                    .or_else(|| variable("AWS_ACCESS_KEY_ID"))
                    .with_context(missing)?,
                secret: fact("secret_key")
                    .or_else(|| variable("AWS_SECRET_ACCESS_KEY"))
                    .with_context(missing)?,
                region: a.region.clone(),
            },
            bucket: a.bucket.clone().unwrap_or_else(|| BUCKET.to_owned()),
        })
    }

    /// One request; `key` is an object's name or empty. `body_hash` is that of the body.
    fn ask(
        &self,
        http: &mut Http,
        method: &str,
        key: &str,
        words: &[(&str, &str)],
        body: &[u8],
        body_hash: &str,
    ) -> Result<Answer> {
        let path = encoded(&format!("/{}/{key}", self.bucket), true);
        let query = query(words);
        let at = crate::results::now().1.replace(['-', ':'], "");
        let host = &self.host;
        let asked = Asked { method, path: &path, query: &query, host, body: body_hash, at: &at };
        let signed = authorization(&self.keys, &asked);
        let mark = if query.is_empty() { "" } else { "?" };
        let head = format!(
            "{method} {path}{mark}{query} HTTP/1.1\r\nHost: {host}\r\nx-amz-date: \
                {at}\r\nx-amz-content-sha256: {body_hash}\r\n\
             Authorization: {signed}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        http.ask(&head, body)
    }

    /// A request without a body that must succeed, or have one of these answers.
    fn must(
        &self,
        http: &mut Http,
        method: &str,
        key: &str,
        words: &[(&str, &str)],
        also: &[u16],
    ) -> Result<Answer> {
        let answer = self.ask(http, method, key, words, b"", &hash(b""))?;
        if answer.status >= 300 && !also.contains(&answer.status) {
            bail!("{method} {}/{key}: {}", self.bucket, refusal(&answer));
        }
        Ok(answer)
    }

    /// Names of objects, a part of them.
    fn list(&self, http: &mut Http, prefix: &str) -> Result<Vec<String>> {
        let answer = self.must(
            http,
            "GET",
            "",
            &[("list-type", "2"), ("max-keys", LISTED), ("prefix", prefix)],
            &[],
        )?;
        Ok(elements(&String::from_utf8_lossy(&answer.body), "Key").map(str::to_owned).collect())
    }

    /// Removes whatever has a name that `is` says; gives how many that were.
    fn sweep(&self, http: &mut Http, prefix: &str, is: impl Fn(&str) -> bool) -> Result<u64> {
        let (mut all, mut after) = (0, String::new());
        loop {
            let mut words = vec![("list-type", "2"), ("max-keys", LISTED), ("prefix", prefix)];
            if !after.is_empty() {
                words.push(("start-after", after.as_str()));
            }
            let answer = self.must(http, "GET", "", &words, &[])?;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            let names: Vec<&str> = elements(&text, "Key").collect();
            for name in names.iter().filter(|n| is(n)) {
                self.must(http, "DELETE", name, &[], &[404])?;
                all += 1;
            }
            match names.last() {
                Some(last) if elements(&text, "IsTruncated").next() == Some("true") => {
                    after = (*last).to_owned()
                }
                _ => return Ok(all),
            }
        }
    }
}

/// What stands in the elements of that name. Those that are read hold no markup: names of our own
/// objects, words of the protocol.
fn elements<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let from = rest.find(&open)? + open.len();
        let behind = rest.get(from..)?;
        let to = behind.find(&close)?;
        rest = behind.get(to + close.len()..)?;
        behind.get(..to)
    })
}

/// Why an endpoint refused.
fn refusal(a: &Answer) -> String {
    let text = String::from_utf8_lossy(&a.body);
    let word = |name: &str| elements(&text, name).next().unwrap_or_default().to_owned();
    format!("the endpoint refuses: {} {} {}", a.status, word("Code"), word("Message"))
        .trim_end()
        .to_owned()
}

/// What the names of objects of all runs begin with that were on this machine, and what those of
/// this run do.
fn prefixes() -> (String, String) {
    let place = hash(here().as_bytes());
    let all = format!("spirula-bench.{}.{}.", hostname(), place.get(..8).unwrap_or_default());
    let pid = u64::from(std::process::id());
    let own = format!("{all}{pid}.{}.", born(pid).unwrap_or(0));
    (all, own)
}

/// Is an object with this name of a process that is gone?
fn is_dead(all: &str, name: &str) -> bool {
    let mut words = name.strip_prefix(all).unwrap_or_default().split('.').map(str::parse::<u64>);
    match (words.next(), words.next()) {
        (Some(Ok(pid)), Some(Ok(start))) => born(pid) != Some(start),
        _ => false,
    }
}

fn name_of(kind: S3Kind, a: &S3Args) -> String {
    let what = match kind {
        S3Kind::Put => format!("put {}", size(a.size)),
        S3Kind::Get => format!("get {}", size(a.size)),
        S3Kind::List => format!("list {LISTED}"),
        S3Kind::Delete => "delete".to_owned(),
    };
    format!("s3 {what}, {} in flight", a.threads)
}

/// A run: its site, and of each thread how many objects are there.
struct Run<'a> {
    site: Site,
    a: &'a S3Args,
    own: String,
    there: Vec<u64>,
    payload: Arc<(Bytes, String)>,
    stop: Arc<AtomicBool>,
}

/// What a thread does.
struct Work {
    site: Site,
    kind: S3Kind,
    prefix: String,
    /// Objects that are there: numbers from 0.
    there: u64,
    size: u64,
    end: Option<Duration>,
    payload: Arc<(Bytes, String)>,
    draw: Draw,
}

impl Work {
    /// One operation; gives its bytes.
    fn once(&mut self, http: &mut Http) -> Result<u64> {
        let name = |n: u64| format!("{}{n}", self.prefix);
        match self.kind {
            S3Kind::Put => {
                let (body, sum) = &*self.payload;
                let key = name(self.there);
                // It may be there, whatever is answered.
                self.there += 1;
                let answer = self.site.ask(http, "PUT", &key, &[], body, sum)?;
                if answer.status >= 300 {
                    bail!("PUT {}/{key}: {}", self.site.bucket, refusal(&answer));
                }
                Ok(self.size)
            }
            S3Kind::Get => {
                let key = name(self.draw.below(self.there));
                let answer = self.site.must(http, "GET", &key, &[], &[])?;
                if answer.body != self.payload.0 {
                    bail!(
                        "GET {}/{key}: {} bytes that are not those that were put",
                        self.site.bucket,
                        answer.body.len()
                    );
                }
                Ok(self.size)
            }
            S3Kind::List => {
                self.site.list(http, &self.prefix)?;
                Ok(0)
            }
            S3Kind::Delete => {
                self.site.must(http, "DELETE", &name(self.there.saturating_sub(1)), &[], &[404])?;
                self.there = self.there.saturating_sub(1);
                Ok(0)
            }
        }
    }

    fn run(
        mut self,
        begun: Instant,
        ops: &AtomicU64,
        stop: &AtomicBool,
    ) -> (u64, Record, Result<()>) {
        let mut http = Http::new(&self.site.host);
        let mut record = Record::default();
        let is_read = matches!(self.kind, S3Kind::Get | S3Kind::List);
        loop {
            let nothing = self.there == 0 && matches!(self.kind, S3Kind::Get | S3Kind::Delete);
            if nothing
                || stop.load(Ordering::Relaxed)
                || self.end.is_some_and(|e| begun.elapsed() >= e)
            {
                return (self.there, record, Ok(()));
            }
            let from = Instant::now();
            match self.once(&mut http) {
                Ok(bytes) => record.add(begun.elapsed(), from.elapsed(), bytes, is_read),
                Err(e) => {
                    // The others end, too: what is told is one failure, not as many as there are
                    // threads.
                    stop.store(true, Ordering::Relaxed);
                    return (self.there, record, Err(e));
                }
            }
            ops.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Run<'_> {
    fn prefix(&self, thread: usize) -> String {
        format!("{}{thread}.", self.own)
    }

    fn measure(&mut self, kind: S3Kind, repeat: u64, shown: &mut Shown<'_>) -> Result<()> {
        let time = Duration::from_secs(self.a.seconds);
        // As many as there are is how many are deleted.
        let end = (kind != S3Kind::Delete).then_some(time);
        let name = name_of(kind, self.a);
        let (ops, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut watch = Watch::begin();
        let begun = Instant::now();
        let mut threads = Vec::new();
        for (i, there) in self.there.iter().enumerate() {
            let work = Work {
                site: self.site.clone(),
                kind,
                prefix: self.prefix(i),
                there: *there,
                size: self.a.size,
                end,
                payload: self.payload.clone(),
                draw: Draw::new(0x53 + i as u64),
            };
            let (ops, stop) = (ops.clone(), stop.clone());
            let thread = std::thread::Builder::new()
                .name("s3".into())
                .spawn(move || work.run(begun, &ops, &stop));
            threads.push(thread.context("start a thread")?);
        }
        let total: u64 = self.there.iter().sum();
        let mut looked = Instant::now();
        while !threads.iter().all(std::thread::JoinHandle::is_finished) {
            std::thread::sleep(LOOK);
            if self.stop.load(Ordering::Relaxed) {
                stop.store(true, Ordering::Relaxed);
            }
            if looked.elapsed() >= Duration::from_secs(1) {
                looked = Instant::now();
                watch.look();
            }
            let done = ops.load(Ordering::Relaxed);
            let part = end.map_or(done as f64 / total.max(1) as f64, |e| {
                begun.elapsed().as_secs_f64() / e.as_secs_f64()
            });
            let rate = done as f64 / begun.elapsed().as_secs_f64().max(0.001);
            shown.progress.at(part, &format!("{name}: {rate:.0} op/s"));
        }
        let (mut record, mut failed) = (Record::default(), Ok(()));
        for (i, thread) in threads.into_iter().enumerate() {
            let Ok((there, found, outcome)) = thread.join() else {
                bail!("a thread of the load ended badly")
            };
            if let Some(slot) = self.there.get_mut(i) {
                *slot = there;
            }
            record.merge(&found);
            failed = failed.and(outcome);
        }
        failed?;
        if self.stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        if record.ops == 0 {
            bail!(
                "{name}: there was nothing to do: put objects first ('spirula bench s3 put \
                    {name}')",
                name = kind.name()
            );
        }
        let used = watch.end(record.ops);
        let run = json!({
            "name": name, "repeat": repeat, "mode": kind.name(), "size": if matches!(kind, S3Kind::Put | S3Kind::Get) { self.a.size } else { 0 },
            "threads": self.a.threads, "seconds": self.a.seconds, "found": record.json(), "used": used.json,
            "bottleneck": bottleneck(&used, self.a.threads, record.iops(), record.latency.mean() / 1e6),
        });
        let text = format!(
            "{name:<34} {:>9.1} op/s {:>11}  mean {:>8}  p99 {:>8}  max {:>8}",
            record.iops(),
            bytes_rate(record.rate()),
            ms(record.latency.mean() / 1e6),
            ms(record.latency.value_at_quantile(0.99) as f64 / 1e6),
            ms(record.latency.max() as f64 / 1e6)
        );
        shown.add(&text, run)
    }
}

/// `spirula bench s3`.
///
/// # Errors
/// When the endpoint cannot be reached or refuses, with its words; what was put is removed then,
/// too.
pub fn s3(lab: &Lab, a: &S3Args) -> Result<()> {
    let site = Site::find(a)?;
    let mut http = Http::new(&site.host);
    let there =
        site.must(&mut http, "GET", "", &[("list-type", "2"), ("max-keys", "1")], &[404])?.status
            != 404;
    if !there && a.bucket.is_some() {
        bail!("there is no bucket '{}' at http://{}", site.bucket, site.host);
    }
    let mut shown = Shown::new(lab, "s3", &a.output)?;
    if !there {
        site.must(&mut http, "PUT", "", &[], &[])?;
    }
    let (all, own) = prefixes();
    let swept = site.sweep(&mut http, &all, |name| is_dead(&all, name))?;
    if swept > 0 {
        shown
            .progress
            .say(&format!("removed {swept} objects that runs which were killed had left"));
    }
    shown.results.set(
        "cluster",
        json!({"endpoint": format!("http://{}", site.host), "bucket": site.bucket}),
    );
    let body = noise(0x53, usize::try_from(a.size).unwrap_or(usize::MAX));
    let sum = hash(&body);
    let mut run = Run {
        site,
        a,
        own,
        there: vec![0; usize::try_from(a.threads).unwrap_or(1)],
        payload: Arc::new((body, sum)),
        stop: lab.stop.clone(),
    };
    let outcome = (0..a.repeats).try_for_each(|repeat| {
        let mut kinds = a.kinds.iter();
        kinds.try_for_each(|kind| run.measure(*kind, repeat, &mut shown))
    });
    // Also what failed is cleaned up; what failed first is what is said.
    let swept = run.site.sweep(&mut http, &run.own, |_| true);
    // The bucket of runs goes, whichever made it; one that somebody has an object in stays: the
    // endpoint says so (409).
    let left = swept.and_then(|_| match &a.bucket {
        Some(_) => Ok(()),
        None => run.site.must(&mut http, "DELETE", "", &[], &[404, 409]).map(drop),
    });
    outcome.and(left)?;
    shown.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_process_left_that_is_gone_is_litter() {
        let (all, own) = prefixes();
        assert!(own.starts_with(&all));
        assert!(!is_dead(&all, &format!("{own}3.17")), "this process lives");
        let pid = std::process::id();
        assert!(is_dead(&all, &format!("{all}{pid}.1.3.17")), "another process had the number");
        for other in
            ["", "photo.jpg", "spirula-bench.elsewhere.0.1.1.1.1", &all, &format!("{all}x.1.1")]
        {
            assert!(!is_dead(&all, other), "{other}");
        }
    }

    #[test]
    fn answers_of_an_endpoint_are_understood() {
        let text = "<R><Contents><Key>a.1</Key></Contents><Contents><Key>b</Key></Contents><IsTruncated>true</IsTruncated></R>";
        assert_eq!(elements(text, "Key").collect::<Vec<_>>(), ["a.1", "b"]);
        assert_eq!(elements(text, "IsTruncated").next(), Some("true"));
        assert_eq!(elements("<Key>torn", "Key").next(), None);
        let a = Answer { status: 403, body: b"<Error><Code>AccessDenied</Code></Error>".to_vec() };
        assert_eq!(refusal(&a), "the endpoint refuses: 403 AccessDenied");
    }
}
