//! Indexes that are to be moved to another number of shards, and that are being moved.

use super::types::{Header, Resharding};
use crate::{Call, Stop, fail, stored};
use bytes::Bytes;
use spirula_encoding::{Decode, DecodeError, Decoder, Encode, Encoder, UTime};
use spirula_types::errno;

/// Most entries that are listed at a time.
const MOST: u32 = 1000;

/// An index that is to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Job {
    time: UTime,
    tenant: Bytes,
    bucket: Bytes,
    bucket_id: Bytes,
    target: Bytes,
    old_shards: u32,
    new_shards: u32,
}

impl Encode for Job {
    fn encode(&self, out: &mut Encoder) {
        out.versioned(1, 1, |o| {
            o.put(&self.time);
            o.put(&self.tenant);
            o.put(&self.bucket);
            o.put(&self.bucket_id);
            o.put(&self.target);
            o.u32(self.old_shards);
            o.u32(self.new_shards);
        });
    }
}

impl Decode for Job {
    fn decode(d: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        // Later releases name no target.
        d.versioned("index to move", 1, |d, v| {
            Ok(Self {
                time: d.get()?,
                tenant: d.get()?,
                bucket: d.get()?,
                bucket_id: d.get()?,
                target: if v < 2 { d.get()? } else { Bytes::new() },
                old_shards: d.u32()?,
                new_shards: d.u32()?,
            })
        })
    }
}

fn key(tenant: &[u8], bucket: &[u8]) -> Bytes {
    [tenant, b":", bucket].concat().into()
}

fn job(call: &Call<'_>) -> Result<Job, Stop> {
    call.args(|d| d.versioned("index to move", 1, |d, _| d.get()))
}

pub(super) fn add(call: &mut Call<'_>) -> Result<i32, Stop> {
    let job = job(call)?;
    call.set(key(&job.tenant, &job.bucket), &job)?;
    Ok(0)
}

pub(super) fn list(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (max, after): (u32, Bytes) =
        call.args(|d| d.versioned("listing", 1, |d, _| Ok((d.get()?, d.get()?))))?;
    let page = call.pairs(&after, b"", if (1..MOST).contains(&max) { max } else { MOST }.into())?;
    let jobs: Vec<Job> = page
        .pairs
        .iter()
        .take(max as usize)
        .map(|(_, value)| stored(value))
        .collect::<Result<_, _>>()?;
    call.output.versioned(1, 1, |o| {
        o.put(&jobs);
        o.bool(page.more);
    });
    Ok(0)
}

pub(super) fn get(call: &mut Call<'_>) -> Result<i32, Stop> {
    let asked = job(call)?;
    let job: Job = call.need(key(&asked.tenant, &asked.bucket))?;
    call.output.versioned(1, 1, |o| o.put(&job));
    Ok(0)
}

pub(super) fn remove(call: &mut Call<'_>) -> Result<i32, Stop> {
    let (tenant, bucket, id): (Bytes, Bytes, Bytes) = call
        .args(|d| d.versioned("index not to move", 1, |d, _| Ok((d.get()?, d.get()?, d.get()?))))?;
    let at = key(&tenant, &bucket);
    let job: Job = call.need(&at)?;
    if id.is_empty() || job.bucket_id == id {
        call.unset(&at)?;
    }
    Ok(0)
}

pub(super) fn begin(call: &mut Call<'_>) -> Result<i32, Stop> {
    let resharding = call.args(|d| d.versioned("resharding", 1, |d, _| d.get()))?;
    let header = Header { resharding, ..call.header()? };
    call.put_header(header)
}

pub(super) fn end(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.args(|d| d.versioned("end of resharding", 1, |_, _| Ok(())))?;
    let mut header: Header = call.header()?;
    header.resharding.status = 0;
    header.resharding.target = Bytes::new();
    call.put_header(header)
}

/// Fails with a given error if the index is being moved.
pub(super) fn guard(call: &mut Call<'_>) -> Result<i32, Stop> {
    let error = call.args(|d| d.versioned("guard", 1, |d, _| d.i32()))?;
    let header: Header = call.header()?;
    match error.checked_neg() {
        _ if header.resharding.status == 0 => Ok(0),
        Some(errno) if errno > 0 => fail(errno),
        Some(_) => Ok(error),
        None => fail(errno::EINVAL),
    }
}

pub(super) fn state(call: &mut Call<'_>) -> Result<i32, Stop> {
    call.args(|d| d.versioned("question", 1, |_, _| Ok(())))?;
    let Header { resharding, .. } = call.header()?;
    call.output.versioned(1, 1, |o| o.put::<Resharding>(&resharding));
    Ok(0)
}

/// An object of Ceph's corpus, read and written.
#[cfg(test)]
pub(super) fn again(kind: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "cls_rgw_reshard_entry" => crate::reencoded::<Job>(bytes),
        _ => None,
    }
}
