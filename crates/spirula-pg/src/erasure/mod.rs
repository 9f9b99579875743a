//! Erasure-coded PGs: each member holds one shard of every object.
//!
//! | file | subject |
//! |---|---|
//! | [`stripe`] | geometry: what a change must read, what each shard writes; pure |
//! | `read` | object bytes from any `k` shards |
//! | `write` | a write as shards: what must be read before it, what each member is given |
//! | `undo` | taking entries back, and when they can no more be taken back |
//! | `rebuild` | making a lacking shard from `k` others |
//! | `sound` | **why no write makes a spoilt shard look sound** |
//!
//! # A write
//! The op vector runs as for a replicated pool and gives one change of the whole object. What
//! it changes of a stripe only in part is read first, from any `k` shards. Each member makes one
//! transaction of what it gets: its shard's units, all attributes, the log entry; and, if the
//! object existed, a clone of it (by reference) under a name of its own, the *undo copy*. The
//! client is answered when all members have it durably. On one object requests follow each other:
//! none is executed while a write of it is under way.
//!
//! Where a write removes the object, its undo copy is made right before that: the store then gives
//! the object another name and copies nothing, so that one without room takes deletions, and their
//! undoing, all the same. Nothing may come between the two updates.
//!
//! # Why an interrupted write ends everywhere or nowhere, and none that was acknowledged is lost
//! An entry may be on some members only, and `k` shards of one version make an object, fewer
//! nothing. So the rule of peering is not "the longest log" but, among the copies of the newest
//! activation, **the shortest**: every member that acknowledged has the entry, an acknowledged
//! entry was acknowledged by all, so it is in the shortest log. What others have beyond is taken
//! back there: the object becomes its undo copy again, or goes if it was new. An interval that
//! may have taken writes is heard when at least `k` of its members are (else the PG is `down`),
//! so the newest activation is always known and what the shortest log says can be made from
//! those that were heard.
//!
//! Undo copies go when their entry can no more be divergent: when it is in every later history.
//! That is so once all members have it durably (it is *rolled forward*); every transaction
//! carries how far that is, and an idle primary says it by itself. Activation makes all members
//! record one log, so its newest entry is rolled forward as well, if they are enough to serve. A
//! log is never trimmed beyond.
//!
//! An undo copy is missing only where a member got no more than the log entry (it was being
//! backfilled and had not reached the object). Such an object is filled only when no write of it
//! is under way, hence with a version that will never be taken back.
//!
//! # What is beyond it
//! A shard whose bytes have rotted, and that nobody has read since, is a loss like any other: with
//! `m` more shards away (an OSD that is down, or one that begins to be filled) fewer than `k` are
//! left, and the object is unfound until one returns. With `m` = 1 one crash is enough for that. No
//! order of writes helps: what was acknowledged was on all `k + m`. Deep scrubs find rot while the
//! PG is clean; `m` = 2 bears both at once.
//!
//! # Refused
//! omap (as in Ceph); reading from members that are not whole.

pub(crate) mod read;
pub(crate) mod rebuild;
pub(crate) mod sound;
pub mod stripe;
pub(crate) mod undo;
pub(crate) mod write;

pub use stripe::Shape;
