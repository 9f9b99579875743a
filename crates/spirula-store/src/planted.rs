//! Bugs planted on purpose, to test the tests: every kind that a store like this one is
//! known to have had, and that the suite must find (`tests/planted.rs`).
//!
//! Compiled for this crate's tests only. Elsewhere [`planted!`] is `false`, and what hangs
//! on it is not there. A bug is planted in a thread, and in the threads of stores that it
//! opens, so that tests do not disturb each other.

/// True if that bug is planted here.
#[cfg(test)]
macro_rules! planted {
    ($bug:ident) => {
        crate::planted::on(crate::planted::Bug::$bug)
    };
}

/// False: bugs are planted in tests only.
#[cfg(not(test))]
macro_rules! planted {
    ($bug:ident) => {
        crate::planted::never()
    };
}

/// A constant that lints do not see through.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn never() -> bool {
    false
}

#[cfg(test)]
pub(crate) use bugs::{Bug, copy, on, plant};

#[cfg(test)]
mod bugs {
    use std::cell::Cell;

    macro_rules! bugs {
        ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) enum Bug {
                $($(#[doc = $doc])+ $name,)+
            }

            impl Bug {
                pub const ALL: &[(Bug, &str)] = &[$((Bug::$name, concat!($($doc),+)),)+];
            }
        };
    }

    bugs! {
        /// delayed small write replayed over space given to another object or the metadata
        StaleImageReplayed,
        /// metadata committed before the data it names, on the other device
        CheckpointBeforeData,
        /// journal frame durable before the data it names
        FrameBeforeData,
        /// metadata root published before its pages are durable
        RootBeforePages,
        /// truncate zeroes the tail in place, then power cut
        TruncateInPlace,
        /// deletion needs space that is not there
        DeletionNeedsSpace,
        /// deletion that may have to be undone needs space for a copy
        DeletionCopies,
        /// object under another name, and the layer below it knows the old one
        MoveUnnamed,
        /// object under another name, and back under the old one after a crash
        MovedTwice,
        /// removed omap whose first step of purging is taken for the last one
        PurgeForgetsRest,
        /// no space kept for metadata
        MetadataTakesAll,
        /// metadata takes the blocks that are left for removing
        MetadataTakesReserve,
        /// large records share the room that one of them was promised
        RoomNotBooked,
        /// "no space" though a checkpoint would free what is beside the journal
        BesideNotAwaited,
        /// space given back to the host that was taken again meanwhile
        HolesUnowned,
        /// "no space" with fragmented space free
        FragmentedIsFull,
        /// allocation map stale after quick shutdown
        StaleAllocationMap,
        /// flush error swallowed
        FlushErrorSwallowed,
        /// short write taken for success
        ShortWriteTaken,
        /// request of more than 2 GiB cut
        HugeRequestCut,
        /// zero page returned once, and believed
        ZeroPageBelieved,
        /// data returned without a look at its checksum
        ChecksumIgnored,
        /// scrub reads the cache, not the rotten device
        ScrubReadsCache,
        /// changed record goes with the cache entry when the cache shrinks to nothing
        CachedRecordFreed,
        /// blocks of a read under way are given away
        ReadUnprotected,
        /// data of freed blocks stays in memory and is taken for what is written there next
        KeptTooLong,
        /// device acknowledges and loses writes, unnoticed
        LostWritesUnnoticed,
        /// one owner too few counted at a clone
        CloneMissesOwner,
        /// freed block reused before the freeing is durable
        FreedReusedEarly,
        /// compressed length wrong after partial overwrite
        CompressedLength,
        /// acknowledged before the frame is durable
        AcknowledgedEarly,
        /// acknowledged when its own frame is durable, though one before it is not
        FrameOvertakes,
        /// frame says that frames still under way were durable
        DurableTooSoon,
        /// frames behind a missing one left for the next to seem to precede
        LaterFramesKept,
        /// torn frame applied
        TornFrameApplied,
        /// journal's tail passes what the metadata holds
        TailTooEarly,
        /// copies of the superblock written without a flush between them
        SuperblockCopiesTogether,
        /// main device of before the last opening taken for the current one
        OldMainBelieved,
        /// journal's end declared after one read
        OneReadEndsJournal,
        /// torn frame at the journal's end left there, to be whole when it is read next
        TornFrameKept,
        /// small data read again from the journal and put in place unseen
        ImageUnverified,
        /// sector that cannot be read, and holds nothing, refuses the store
        BadSectorRefused,
        /// allocation of space fails now and then, and what was taken before it is kept
        AbortKeepsSpace,
        /// blocks of changes beside the journal given away before the checkpoint that has them
        BesideReusedEarly,
        /// range of keys removed from memory, and not from what is stored
        RangeStays,
        /// header of an omap in the journal only, forgotten at the opening
        HeaderForgotten,
        /// log removed in the journal only, back at the opening
        LogComesBack,
        /// attribute removed and there all the same
        AttributeStays,
        /// what is left of compressed data overwritten in part never stored anew
        BlobsPileUp,
        /// what a checkpoint cannot hold taken all the same
        LimitsIgnored,
        /// omap changed by its last owner while a copy of it is still to be made
        SourceChanges,
        /// omap of which a copy is still to be made forgotten when its last owner goes
        SourceForgotten,
        /// checkpoint that does not make the copies of omaps
        CopyForgotten,
        /// clone not counted by the layer below it
        LayerMissesChild,
        /// layer with two children taken for one with one
        LayerMergedEarly,
        /// what a write over a layer hides let go of, though others see it
        HiddenBlocksFreed,
        /// owner not counted of the blocks of a layer that a whole map refers to
        WholeMapMissesOwner,
        /// layers put together into one map, through whose holes what is below shows again
        FoldedMapShowsHoles,
        /// layer not marked whose blocks another map refers to
        FoldedLayerUnmarked,
        /// clone not counted as an owner of the omap it shares
        OmapMissesOwner,
        /// what only a child hid stays when layer and child become one
        HiddenBlocksKept,
        /// object that comes to a layer by a merge, and nothing says whose its name is
        MergedUntold,
        /// name that has passed on believed to be of the object that a layer was made for
        CoupleBelieved,
        /// couple asked for the key of what this transaction has moved
        CoupleAskedFirst,
        /// object taken to have one kind of checksum when it was given another one
        KindOutlived,
    }

    thread_local! {
        static HERE: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Is it planted in this thread?
    pub(crate) fn on(bug: Bug) -> bool {
        HERE.get() == Some(bug)
    }

    /// Plants a bug in this thread in place of any other.
    pub(crate) fn plant(bug: Option<Bug>) {
        HERE.set(bug);
    }

    /// What is planted in this thread, for another one.
    pub(crate) fn copy() -> Option<Bug> {
        HERE.get()
    }
}
