//! Spring MVC with Tomcat, as Spring Boot sets it up: up to 200 threads.

use std::fs;

use super::{Prepared, Server, java, words};
use crate::concurrency::site::Site;

const VERSION: &str = "3.5.16";
const PROJECT: &str = include_str!("java/spring.xml");
const PROGRAM: &str = include_str!("java/Mvc.java");

pub struct Spring;

impl Server for Spring {
    fn name(&self) -> &'static str {
        "spring"
    }

    fn model(&self) -> &'static str {
        "200 threads"
    }

    fn lacks(&self) -> Option<String> {
        java::lacks()
    }

    fn prepare(&self, site: &Site<'_>) -> anyhow::Result<Prepared> {
        let directory = site.place(self.name())?;
        let sources = directory.join("src/main/java/bench");
        fs::create_dir_all(&sources)?;
        fs::write(directory.join("pom.xml"), PROJECT.replace("@VERSION@", VERSION))?;
        fs::write(sources.join("Mvc.java"), PROGRAM)?;
        java::build(&directory)?;
        Ok(Prepared {
            version: VERSION.into(),
            directory,
            command: words(&format!("{} bench.Mvc", java::RUN)),
            environment: Vec::new(),
        })
    }
}
