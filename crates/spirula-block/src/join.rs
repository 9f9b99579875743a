//! Several things at a time, in one thread.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Most parts of one request that are under way.
const AT_A_TIME: usize = 32;

/// Does all of them, [`AT_A_TIME`], and waits for each, also after a failure: what was begun is
/// done.
///
/// # Errors
/// The first of theirs; what was not begun by then is left.
pub async fn all<F, T>(work: impl IntoIterator<Item = F>) -> Result<Vec<T>, i32>
where
    F: Future<Output = Result<T, i32>>,
{
    let mut done: Vec<Option<T>> = Vec::new();
    each(work, |at, value| {
        done.resize_with(done.len().max(at + 1), || None);
        done[at] = Some(value);
    })
    .await?;
    Ok(done.into_iter().flatten().collect())
}

/// The same; what comes of each is told with its number, and kept by nobody else: there may be any
/// number of them.
///
/// # Errors
/// As [`all`].
pub async fn each<F, T>(
    work: impl IntoIterator<Item = F>,
    mut told: impl FnMut(usize, T),
) -> Result<(), i32>
where
    F: Future<Output = Result<T, i32>>,
{
    let mut rest = work.into_iter().enumerate();
    let mut open: Vec<(usize, Pin<Box<F>>)> = Vec::new();
    let mut failed = None;
    poll_fn(|cx| {
        loop {
            while failed.is_none() && open.len() < AT_A_TIME {
                let Some((at, next)) = rest.next() else { break };
                open.push((at, Box::pin(next)));
            }
            let before = open.len();
            open.retain_mut(|(at, one)| match one.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(Ok(value)) => {
                    told(*at, value);
                    false
                }
                Poll::Ready(Err(e)) => {
                    failed.get_or_insert(e);
                    false
                }
            });
            if open.is_empty() && (failed.is_some() || before == 0) {
                return Poll::Ready(());
            }
            if open.len() == before {
                return Poll::Pending;
            }
        }
    })
    .await;
    failed.map_or(Ok(()), Err)
}
