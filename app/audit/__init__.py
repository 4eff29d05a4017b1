"""A partition counted: what an audit plan means (`how`), its pump (`pump`), what is told of it (`view`)."""
