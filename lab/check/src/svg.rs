//! SVG images for light and dark backgrounds.

use std::fmt::{Display, Write};

/// An image.
pub(crate) struct Svg(String);

/// Text with the characters of markup escaped.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Svg {
    /// An image with a title and a line of text below it. `classes` has the style of each class of
    /// shapes on a light background and on a dark one.
    pub(crate) fn new(size: [f64; 2], title: &str, about: &str, classes: &[[&str; 3]]) -> Svg {
        let [width, height] = size;
        let rules = |of: usize| -> String {
            let rule = |class: &[&str; 3]| format!("    .{} {{ {} }}\n", class[0], class[of]);
            classes.iter().map(rule).collect()
        };
        let (title, about) = (escaped(title), escaped(about));
        Svg(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"13\" role=\"img\">\n<style>\n    text {{ fill: #1f2328; }}\n    .paper {{ fill: #ffffff; }}\n{}  \
             @media (prefers-color-scheme: dark) {{\n    text {{ fill: #e6edf3; }}\n    .paper {{ fill: #14171a; }}\n{}  \
             }}\n</style>\n<title>{title}</title>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n\
             <text x=\"12\" y=\"22\" font-size=\"15\">{title}</text>\n<text x=\"12\" y=\"44\">{about}</text>\n",
            rules(1),
            rules(2)
        ))
    }

    /// A rectangle of a class: x, y, width and height.
    pub(crate) fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4]) {
        let _ = writeln!(
            self.0,
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>"
        );
    }

    /// Text at a point, with further attributes such as ` font-size="9"`.
    pub(crate) fn text(&mut self, [x, y]: [f64; 2], attributes: &str, text: impl Display) {
        let text = escaped(&text.to_string());
        let _ = writeln!(self.0, "<text x=\"{x:.1}\" y=\"{y:.1}\"{attributes}>{text}</text>");
    }

    /// The text of the image.
    pub(crate) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}
