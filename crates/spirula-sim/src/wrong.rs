//! What a run may show to be wrong, by its kind ([`Sign`]): a planted bug counts as found only by a
//! kind of failure that it must cause.

/// Kinds of wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sign {
    /// A read saw nothing that was there while it ran.
    Stale,
    /// What is there in the end is not what the changes make.
    Lost,
    /// The order of an object's changes contradicts time, or two have one place.
    Order,
    /// A change cannot have been answered as it was.
    Answer,
    /// An answer is wrong by itself: an error nobody may get, a version that lacks, data nobody
    /// wrote.
    Reply,
    /// Copies or shards of an object differ, or one is where none may be.
    Copies,
    /// A store is not sound.
    Store,
    /// Not all came right in the time of peace.
    Stuck,
    /// Nor then, since nobody has an object.
    Unfound,
    /// Clients stand still where the cluster could go on.
    Stalled,
    /// A scrub found damage where nothing was damaged, or did not come to an end.
    Scrub,
    /// Registers of the monitors are not linearizable.
    Registers,
    /// Monitors disagree: two leaders of a term, two states of an entry, two contents of an epoch.
    Monitors,
    /// A monitor's store is refused at its start.
    Refused,
    /// A daemon ended by itself.
    Exit,
    /// Logs of a PG disagree with what was acknowledged.
    Log,
    /// Two primaries serve the same PG.
    Serves,
    /// What members keep of a PG (missing sets, counts, requests) does not agree.
    Books,
    /// Somebody who watches was passed over, or a notification is told to have ended as it did not.
    Watch,
    /// The code panicked.
    Panic,
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Its kind.
    pub sign: Sign,
    /// In words.
    pub why: String,
}

impl Sign {
    /// Wrong in this way.
    pub fn of(self, why: impl Into<String>) -> Wrong {
        Wrong { sign: self, why: why.into() }
    }
}

impl From<spirula_history::versions::Wrong> for Wrong {
    fn from(wrong: spirula_history::versions::Wrong) -> Self {
        use spirula_history::versions::Wrong as Of;
        let sign = match &wrong {
            Of::Place(_) | Of::Time(_) => Sign::Order,
            Of::Change(_) => Sign::Answer,
            Of::Last(_) => Sign::Lost,
            Of::Read(_) => Sign::Stale,
        };
        sign.of(wrong.why())
    }
}
