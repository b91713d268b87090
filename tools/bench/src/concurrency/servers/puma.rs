//! Puma with as many threads as it has by default, and Rails gives it.

use super::{Prepared, Server, ruby, words};
use crate::concurrency::site::Site;

pub struct Puma;

impl Server for Puma {
    fn name(&self) -> &'static str {
        "puma"
    }

    fn model(&self) -> &'static str {
        "5 threads"
    }

    fn lacks(&self) -> Option<String> {
        ruby::lacks(&[("puma", "puma")])
    }

    fn prepare(&self, site: &Site<'_>) -> anyhow::Result<Prepared> {
        let directory = site.place(self.name())?;
        ruby::write_application(&directory)?;
        Ok(Prepared {
            version: ruby::version("puma")?,
            directory,
            command: words("puma -t 5:5 -b tcp://127.0.0.1:@PORT@ -e production config.ru"),
            environment: Vec::new(),
        })
    }
}
