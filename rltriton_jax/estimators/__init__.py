"""One module an estimator: its public function, its object, its algebra."""
