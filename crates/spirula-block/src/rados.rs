//! What an image needs from its cluster.

use bytes::Bytes;
use spirula_client::{Reply, Request};
use spirula_encoding::UTime;
use spirula_messages::ceph::osd::NotifyReply;
use spirula_types::{EntityAddr, ObjectLocator, PoolId};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc;

/// What became of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Somebody notified; wants [`Rados::acknowledge`].
    Notified {
        /// The notification.
        id: u64,
        /// What was sent.
        payload: Bytes,
    },
    /// The watch is gone, with −errno. Nothing more comes.
    Lost(i32),
}

/// A watch on an object.
#[derive(Debug)]
pub struct Watch {
    /// Its cookie.
    pub cookie: u64,
    /// What becomes of it; at an end when the watch is.
    pub news: mpsc::UnboundedReceiver<News>,
}

/// A client of a cluster. All of it is used in one thread; nothing here blocks it.
///
/// Operations are done in the order in which [`Rados::execute`] was called first polled, for each
/// object. They end when they are durable, or with an error of the cluster's; an OSD that cannot be
/// reached is waited for.
#[allow(async_fn_in_trait, reason = "images live in one thread, as their shell does")]
pub trait Rados: 'static {
    /// Does operations on one object.
    async fn execute(&self, request: Request) -> Reply;
    /// The pool of this name, by the newest map that the monitors have.
    async fn pool(&self, name: &str) -> Option<PoolId>;
    /// Watches an object.
    ///
    /// # Errors
    /// −errno.
    async fn watch(&self, at: &ObjectLocator, oid: &Bytes) -> Result<Watch, i32>;
    /// Ends a watch.
    async fn unwatch(&self, cookie: u64);
    /// Answers a notification.
    fn acknowledge(&self, cookie: u64, id: u64, reply: &[u8]);
    /// Notifies all who watch an object, and waits so many seconds for their answers; those who did
    /// not answer are left out.
    ///
    /// # Errors
    /// −errno.
    async fn notify(
        &self,
        at: &ObjectLocator,
        oid: &Bytes,
        payload: Bytes,
        seconds: u32,
    ) -> Result<Vec<NotifyReply>, i32>;
    /// Makes the cluster refuse whatever a client does from now on (`osd blocklist add`), and waits
    /// until our own operations bring the map with that to every OSD.
    ///
    /// # Errors
    /// What the monitors say.
    async fn fence(&self, addr: EntityAddr) -> Result<(), String>;
    /// Waits.
    async fn sleep(&self, time: Duration);
    /// Runs something beside its caller, in the same thread.
    fn spawn(&self, work: Pin<Box<dyn Future<Output = ()>>>);
    /// The time of day.
    fn now(&self) -> UTime;
    /// Our global id; known once we are in. The monitors may give another one later.
    fn global_id(&self) -> u64;
    /// The nonce in the address of all our connections: the same for as long as we live.
    fn nonce(&self) -> u32;
}
