//! Spring MVC with Tomcat, as Spring Boot sets it up: up to 200 threads.

use super::java::{self, Project};
use super::{Prepared, Server};
use crate::concurrency::site::Site;

const PROJECT: Project = Project {
    version: "3.5.16",
    pom: include_str!("java/spring.xml"),
    class: "Mvc",
    program: include_str!("java/Mvc.java"),
};

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
        PROJECT.prepare(site.place(self.name())?)
    }
}
