//! Results, and what a person sees while they come.

use crate::args::{Lab, Output};
use crate::prelude::*;
use crate::progress::Progress;
use crate::results::Results;

/// The results of a command, and its lines.
pub struct Shown<'a> {
    lab: &'a Lab,
    json: bool,
    /// What is written.
    pub results: Results,
    /// What changes.
    pub progress: Progress,
}

impl<'a> Shown<'a> {
    /// Begins results of `spirula bench WHAT`.
    ///
    /// # Errors
    /// When their directory cannot be used.
    pub fn new(lab: &'a Lab, what: &str, output: &Output) -> Result<Self> {
        let results = Results::new("bench", what, output.out.as_deref(), output.label.as_deref())?;
        Ok(Self { lab, json: output.json, results, progress: Progress::new(output.json) })
    }

    /// A measurement, and the line that tells of it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, line: &str, run: Value) -> Result<()> {
        self.say(line);
        self.results.push(run)
    }

    /// A line for a person.
    pub fn say(&mut self, line: &str) {
        if !self.json {
            self.progress.end();
            self.lab.say(line);
        }
    }

    /// Ends it, and says where the results are.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn finish(mut self) -> Result<()> {
        self.progress.end();
        let dir = self.results.dir.clone();
        let value = self.results.finish()?;
        if self.json {
            self.lab.say(value.to_string());
        } else {
            self.lab.say(format!(
                "results in {}; 'spirula report {}' makes a page of them",
                dir.display(),
                dir.display()
            ));
        }
        Ok(())
    }
}
